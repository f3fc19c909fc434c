"""One module a section: ``run(context)`` gives its :class:`bench.figures.Result`."""
