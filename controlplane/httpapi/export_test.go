package httpapi

// Decode lets tests reach the strict reader of requests.
var Decode = decode

// Methods is the names of all methods.
func Methods() []string {
	var names []string
	for name := range methods {
		names = append(names, name)
	}
	return names
}
