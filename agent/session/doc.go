// Package session speaks to the gateway: it dials, authenticates the gateway by the pinned serving CA, and carries Join,
// Renew and the node's Session.
//
// It knows the wire and nothing of disks, keys at rest or policy: what to send, when to try again and what to believe of
// an answer is the agent's. A failure of the gateway's authentication is a [fault.Verification] error, never an
// unreachable gateway; a refusal carries the control plane's own code and message.
package session
