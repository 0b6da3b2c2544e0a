package httpapi

import (
	"errors"
	"net/http"

	"github.com/better-compute/bcd/controlplane/pki"
	"github.com/better-compute/bcd/internal/pin"
)

// wellKnownPath follows the base path.
const wellKnownPath = "/.well-known/better-compute"

// The protocol versions of the daemon's wire that this control plane speaks.
const (
	protocolMin = 1
	protocolMax = 1
)

// Document is the well-known document. It is public and authenticates nothing by itself: a daemon takes keys from it
// only where they match pins that it got another way.
type Document struct {
	Name     string          `json:"name"`
	Version  string          `json:"version"`
	BasePath string          `json:"basePath"`
	Protocol ProtocolRange   `json:"protocol"`
	Join     *JoinSection    `json:"join,omitempty"`
	Gateway  *GatewaySection `json:"gateway,omitempty"`
}

// ProtocolRange is the protocol versions that the control plane speaks, both ends included.
type ProtocolRange struct {
	Min int `json:"min"`
	Max int `json:"max"`
}

// JoinSection is JoinService's public keys.
type JoinSection struct {
	EncryptionJWK    pki.JWK `json:"encryptionJwk"`
	EncryptionKeyPin pin.Pin `json:"encryptionKeyPin"`
	// SigningCertificate is DER in standard base64.
	SigningCertificate []byte  `json:"signingCertificate"`
	SigningKeyPin      pin.Pin `json:"signingKeyPin"`
}

// GatewaySection is how machines reach the gateway.
type GatewaySection struct {
	URL          string  `json:"url"`
	ServerName   string  `json:"serverName,omitempty"`
	ServingCAPin pin.Pin `json:"servingCaPin"`
}

// Gateway is what the operator says of the gateway.
type Gateway struct {
	// URL is what machines dial, https://HOST[:PORT].
	URL string
	// ServerName is the name in the gateway's certificate where it is not the URL's host. It may be empty.
	ServerName string
}

// document builds the well-known document. A section exists only where its part is configured.
func document(o Options) (Document, error) {
	d := Document{
		Name:     "better-compute",
		Version:  o.Version,
		BasePath: o.BasePath,
		Protocol: ProtocolRange{Min: protocolMin, Max: protocolMax},
	}
	if o.PKI == nil {
		if o.Gateway != nil {
			return Document{}, errors.New("cannot publish the gateway without the PKI that its pin comes from")
		}
		return d, nil
	}
	pins := o.PKI.Pins()
	d.Join = &JoinSection{
		EncryptionJWK:      o.PKI.EncryptionJWK(),
		EncryptionKeyPin:   pins.JoinEncryption,
		SigningCertificate: o.PKI.JoinSigningCertificate().Raw,
		SigningKeyPin:      pins.JoinSigning,
	}
	if g := o.Gateway; g != nil {
		d.Gateway = &GatewaySection{URL: g.URL, ServerName: g.ServerName, ServingCAPin: pins.ServingCA}
	}
	return d, nil
}

func (a *API) serveDocument(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "public, max-age=60")
	a.answer(w, r, http.StatusOK, a.document)
}
