// Package httpapi is the control plane's HTTP API: POST {basePath}/{group}/{method} with a JSON object, and the public
// well-known document.
//
// Names are camelCase. An answer is a JSON object; a failure is {"code", "message"} and, where there is something to do,
// "hint", with an HTTP status that follows from the code. A request is read strictly: what the method's schema does not
// name, names twice or spells in another case is refused with INVALID_ARGUMENT and the field's name, because a mistyped
// security option that is silently ignored is an option that is off.
//
// Each method does four things in one order: authenticate the bearer API key, read the request, ask the one [Authorizer]
// for (action, resource), and call the store. A caller acts for the tenant of its key only; what belongs to another tenant
// does not exist for it.
//
// The package holds no rule about tokens, nodes or events of its own: those live in the packages that it calls. It opens
// no listener; [NewServer] only sets the limits that an HTTP server on an open network needs.
package httpapi
