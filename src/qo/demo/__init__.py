"""A tour in half a minute: `python -m qo.demo`. Real workers on a real file, one of them killed."""
