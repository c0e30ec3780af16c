"""Where text comes from: local files, data sets of the hub, and documents one after another."""
