"""Ratios against peers and limits, measured side by side in one run."""
