"""HTTP interface of a node: routes, access checks, OpenAPI."""
