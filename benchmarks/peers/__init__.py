"""The peers whose cost of a step is measured, each in its own environment; `python benchmarks/peers` makes these.

A peer's file has `CONTENDERS`: name -> `run(work, listeners)`, which trains one epoch and returns the optimizer;
`LISTENER`: what so many of are called at the end of each batch, and do nothing; None: there's nothing to listen to;
`PACKAGES`, whose releases are told; and maybe `MORE_LISTENERS`, how many more to measure.

Each peer is set up as lean as its documentation allows, with all that is said there to cost time turned off, and as
somebody would who means to train with it: no part of it is replaced.
"""
