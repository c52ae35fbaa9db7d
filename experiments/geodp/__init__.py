"""placeholder"""

TARGETS = {}
