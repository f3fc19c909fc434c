"""Stand-ins for the outside systems, served over HTTP by one small process.

The package stands alone: it imports neither Django nor any other package of the project, and the project talks to it
only through the real client libraries.
"""
