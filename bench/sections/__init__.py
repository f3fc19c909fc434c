"""One module a section: ``run(stage)`` gives its :class:`bench.figures.Result`."""
