package httpapi

import "reflect"

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

// MethodTypes returns the types of a method's request and answer.
func MethodTypes(name string) (request, answer reflect.Type) {
	return methods[name].request, methods[name].answer
}

// StatusOf is the HTTP status of a code.
var StatusOf = statusOf
