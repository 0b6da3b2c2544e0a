package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/better-compute/bcd/docs"
)

// openAPIPath follows the base path.
const openAPIPath = "/openapi.json"

// openAPI is the document of the API as this server has it: at its base path and of its version.
func openAPI(o Options) (json.RawMessage, error) {
	var d map[string]json.RawMessage
	if err := json.Unmarshal(docs.OpenAPI, &d); err != nil {
		return nil, fmt.Errorf("the OpenAPI document is not JSON: %w", err)
	}
	var info map[string]string
	if err := json.Unmarshal(d["info"], &info); err != nil {
		return nil, fmt.Errorf("the OpenAPI document says nothing of the API: %w", err)
	}
	if o.Version != "" {
		info["version"] = o.Version
	}
	for key, value := range map[string]any{"info": info, "servers": []map[string]string{{"url": o.BasePath}}} {
		text, err := json.Marshal(value)
		if err != nil {
			return nil, err
		}
		d[key] = text
	}
	return json.Marshal(d)
}

func (a *API) serveOpenAPI(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "public, max-age=60")
	a.answer(w, r, http.StatusOK, a.openAPI)
}
