"""What is uploaded when a version is released: how it is built, checked and installed.

    scripts/release

builds the wheel and the source distribution from the files that git knows, checks both, installs the wheel in
an environment of its own, runs what a newcomer runs there, and says what to upload. It uploads nothing.
"""
