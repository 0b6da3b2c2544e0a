package helper

import (
	"bytes"
	"crypto/sha256"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/signing"
)

// tls13Head is what a TLS 1.3 client signs before the transcript hash (RFC 8446, section 4.4.3).
var tls13Head = []byte(strings.Repeat(" ", 64) + "TLS 1.3, client CertificateVerify\x00")

// Lengths of a transcript hash: that of the cipher suite's hash, SHA-256 or SHA-384 (RFC 8446, appendix B.4).
const (
	transcriptSHA256 = 32
	transcriptSHA384 = 48
)

// isTLS13 reports whether a message is exactly the one that a TLS 1.3 client signs.
func isTLS13(message []byte) bool {
	transcript, found := bytes.CutPrefix(message, tls13Head)
	return found && (len(transcript) == transcriptSHA256 || len(transcript) == transcriptSHA384)
}

// purposes are what a node's key signs.
var purposes = []signing.Purpose{signing.JoinRequest, signing.RenewPoP, signing.X509PoP, signing.CommandResult, signing.SiteVouch}

// The payload of a proof of possession: [signing.PoP].
const (
	popFixed  = sha256.Size + 8 // the request's hash and the time
	maxNodeID = 255
)

// checkPurpose checks that a node's key may sign the payload for the purpose.
func checkPurpose(p signing.Purpose, payload []byte) error {
	if !slices.Contains(purposes, p) {
		return fault.New(fault.InvalidArgument, "", "no node signs for the purpose %.40q", p)
	}
	if len(payload) == 0 || len(payload) > MaxPayload {
		return fault.New(fault.InvalidArgument, "", "the payload of a %s has %d bytes, not 1 to %d", p, len(payload), MaxPayload)
	}
	if p != signing.RenewPoP && p != signing.X509PoP {
		return nil
	}
	if len(payload) <= popFixed || len(payload) > popFixed+maxNodeID || !isNodeID(payload[popFixed:]) {
		return fault.New(fault.InvalidArgument, "", "the payload is none of a %s: 32 bytes, 8 bytes and a node's id", p)
	}
	return nil
}

// isNodeID accepts the text that a node's id can be.
func isNodeID(id []byte) bool {
	return utf8.Valid(id) && !bytes.ContainsFunc(id, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._-", r)
	})
}
