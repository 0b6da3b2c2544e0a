// Package docs holds what programs serve of the documentation: the OpenAPI document of the HTTP API.
//
// The document is made from the API's Go types by the tests of controlplane/httpapi; nobody edits it by hand.
package docs

import _ "embed" // openapi.json

// OpenAPI is the OpenAPI 3.1 document of the HTTP API at its default base path, JSON.
//
//go:embed openapi.json
var OpenAPI []byte
