// Package joinservice admits machines, renews their certificates and holds their sessions: the server of
// joinv1.JoinService, which the gateway reaches over mutual TLS.
//
// A call's checks run in the order of the files: request.go reads and verifies what needs no database; admit.go decides an
// admission, first on a snapshot and then again in the one transaction that writes it; renew.go and session.go do the
// same for their calls. Everything that a refused call says to the machine is refuse.go's: one answer for every reason,
// at an instant that tells nothing. The reason goes to the event stream of whoever may know it.
//
// An [Attestor] is one way for a machine to show that it may join: [JoinToken], [Discovery], [X509PoP] and [TPM] are here.
// Another one is another file and an entry of [Options.Attestors].
//
// # What this package does not do
//
// It terminates no TLS and trusts what the gateway says of its peer only as far as the gateway's own certificate goes.
// It keeps no state of its own beside the sessions that it holds and the counts that limit refusals: the rest is
// controlplane/store's. It asks no other service: an admission is one transaction here or nothing.
package joinservice
