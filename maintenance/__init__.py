"""What is written into files from one place: the project's address, its picture, its counts.

`python -m maintenance` writes all of it; the tests refuse a file that it would change.
"""
