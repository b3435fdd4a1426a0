// A browser gives no worker to a page that was opened from a disk, so the search does its work in a hidden frame there.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.append(this.frame)
      const inside = this.frame.contentWindow
      const script = inside.document.createElement("script")
      inside.postMessage = (data) => setTimeout(() => this.onmessage?.({ data }))
      this.loaded = new Promise((loaded) => script.addEventListener("load", loaded))
      script.addEventListener("error", (event) => this.onerror?.(event))
      script.src = url
      inside.document.head.append(script)
    }

    postMessage(data) {
      this.loaded.then(() => this.frame.contentWindow?.onmessage({ data }))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
