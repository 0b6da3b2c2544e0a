package agent

import (
	"context"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/better-compute/bcd/tpmkey"
	"github.com/better-compute/bcd/tpmkey/attest"
)

// TPMReport is what "bcd tpm identify" reports: what a control plane knows the machine's TPM by. The names that begin with ek_
// are what an operator's allow-list takes. Byte strings are base64 in JSON.
type TPMReport struct {
	// EKSHA256 is the lower-case hex SHA-256 of EKSPKI.
	EKSHA256 string `json:"ek_sha256"`
	// EKSPKI is the endorsement key's SubjectPublicKeyInfo, DER.
	EKSPKI []byte `json:"ek_spki"`
	// EKTemplate is the TCG's name of the key's template, such as "L-1".
	EKTemplate string `json:"ek_template"`
	// EKCertificates are DER: the key's own, then what else the TPM holds of its maker's authorities.
	EKCertificates [][]byte `json:"ek_certificates"`

	// EKIndex is the NV index that stands for the template, as [tpm] ek names it.
	EKIndex string `json:"ek_index"`
	// EKKey is the key's algorithm, such as "RSA 2048" or "ECC P-256".
	EKKey string `json:"ek_key"`
	// Certificates are EKCertificates as people read them.
	Certificates []TPMCertificate `json:"certificates"`
	// AKStatement is what a certificate would say of this TPM's attestation key: urn:bc:tpm-ak:sha256:….
	AKStatement string `json:"ak_statement"`

	Manufacturer string   `json:"manufacturer"`
	Model        string   `json:"model"`
	Firmware     string   `json:"firmware"`
	Spec         string   `json:"spec"`
	Device       string   `json:"device"`
	Notes        []string `json:"notes"`
}

// TPMCertificate is a certificate of a TPM's maker.
type TPMCertificate struct {
	// Subject and Issuer are RFC 2253 names. That of an endorsement key is often empty: it stands in Names.
	Subject string `json:"subject"`
	Issuer  string `json:"issuer"`
	// Names is the directory name in the alternative names, where the TCG puts the TPM's maker, model and version.
	Names     string    `json:"names,omitempty"`
	NotBefore time.Time `json:"not_before"`
	NotAfter  time.Time `json:"not_after"`
	SHA256    string    `json:"sha256"`
	// Unreadable is why nothing of the above but the hash is known.
	Unreadable string `json:"unreadable,omitempty"`
}

// TPMIdentity reads which TPM the machine has. It sends nothing, stores nothing and needs no identity.
func (a *Agent) TPMIdentity(ctx context.Context) (TPMReport, error) {
	id, err := a.keys.Attester().Identify(ctx)
	if err != nil {
		return TPMReport{}, err
	}
	statement, err := attest.AKStatement(id.AKPublic)
	if err != nil {
		return TPMReport{}, err
	}
	r := TPMReport{
		EKSPKI: id.EK.SPKI, EKTemplate: id.EK.Template, EKCertificates: id.EKCertificates, EKIndex: fmt.Sprintf("0x%08x", id.EKIndex),
		EKKey: keyText(id), AKStatement: statement, Manufacturer: id.Manufacturer, Model: id.Model, Firmware: id.FirmwareVersion,
		Spec: id.Spec, Device: a.cfg.TPM.Device, Notes: id.Notes, Certificates: []TPMCertificate{},
	}
	hash := id.EK.Hash()
	r.EKSHA256 = hex.EncodeToString(hash[:])
	for _, der := range id.EKCertificates {
		r.Certificates = append(r.Certificates, tpmCertificate(der))
	}
	if r.EKCertificates == nil {
		r.EKCertificates = [][]byte{}
	}
	if r.Notes == nil {
		r.Notes = []string{}
	}
	return r, nil
}

func keyText(id tpmkey.Identity) string {
	key, err := x509.ParsePKIXPublicKey(id.EK.SPKI)
	if err != nil {
		return "unknown"
	}
	switch key := key.(type) {
	case *rsa.PublicKey:
		return fmt.Sprintf("RSA %d", key.N.BitLen())
	case *ecdsa.PublicKey:
		return "ECC " + key.Curve.Params().Name
	default:
		return fmt.Sprintf("%T", key)
	}
}

func tpmCertificate(der []byte) TPMCertificate {
	sum := sha256.Sum256(der)
	shown := TPMCertificate{SHA256: hex.EncodeToString(sum[:])}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		shown.Unreadable = err.Error()
		return shown
	}
	shown.Subject, shown.Issuer = cert.Subject.String(), cert.Issuer.String()
	shown.NotBefore, shown.NotAfter, shown.Names = cert.NotBefore.UTC(), cert.NotAfter.UTC(), directoryNames(cert)
	return shown
}

var (
	oidSubjectAltName = asn1.ObjectIdentifier{2, 5, 29, 17}
	// tpmAttributes are the TCG's attributes of a TPM (EK Credential Profile, section 3.1.2).
	tpmAttributes = map[string]string{"2.23.133.2.1": "manufacturer", "2.23.133.2.2": "model", "2.23.133.2.3": "version"}
)

// directoryNames returns the directory names among a certificate's alternative names; "" where there is none to be read. They
// are for people: nothing is decided by them.
func directoryNames(cert *x509.Certificate) string {
	const directoryName = 4 // GeneralName, RFC 5280 section 4.2.1.6
	var parts []string
	for _, ext := range cert.Extensions {
		var names []asn1.RawValue
		if !ext.Id.Equal(oidSubjectAltName) {
			continue
		}
		if _, err := asn1.Unmarshal(ext.Value, &names); err != nil {
			continue
		}
		for _, name := range names {
			var sequence pkix.RDNSequence
			if name.Class != asn1.ClassContextSpecific || name.Tag != directoryName {
				continue
			}
			if _, err := asn1.Unmarshal(name.Bytes, &sequence); err != nil {
				continue
			}
			for _, set := range sequence {
				for _, attribute := range set {
					what, known := tpmAttributes[attribute.Type.String()]
					if !known {
						what = attribute.Type.String()
					}
					parts = append(parts, fmt.Sprintf("%s=%v", what, attribute.Value))
				}
			}
		}
	}
	return strings.Join(parts, ", ")
}
