"""The ghost method: clipped sums from one forward and one backward pass of the whole batch."""
