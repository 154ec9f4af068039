"""What decides and acts beside the request path: fleets, scaling, builds, the catalog."""
