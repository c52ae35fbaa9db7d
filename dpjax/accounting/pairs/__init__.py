"""From a mechanism to the pairs of distributions that dominate it."""
