"""For the tests of users: what pytest finds of this package by itself, once it is installed."""
