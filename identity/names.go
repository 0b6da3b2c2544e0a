package identity

import (
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"slices"
	"strings"
)

const (
	spiffeScheme    = "spiffe://"
	statementPrefix = "urn:bc:"
	akPrefix        = statementPrefix + "tpm-ak:"
	rolePrefix      = "bc-role:"
)

// The roles that a certificate can name.
const (
	RoleNode       = "node"
	RoleSite       = "site"
	RoleRamdisk    = "ramdisk"
	RoleNodeTenant = "node-tenant"
)

func spiffeID(trustDomain, site, nodeID string) string {
	return spiffeScheme + trustDomain + "/site/" + site + "/node/" + nodeID
}

var (
	oidSubjectAltName = asn1.ObjectIdentifier{2, 5, 29, 17}
	tagURI            = 6 // RFC 5280 section 4.2.1.6, GeneralName
)

// uris returns the URI names of a certificate as they are encoded, in their order. x509.Certificate.URIs has them
// parsed, and a parsed URI may print as another text.
func uris(cert *x509.Certificate) ([]string, error) {
	var all []string
	for _, ext := range cert.Extensions {
		if !ext.Id.Equal(oidSubjectAltName) {
			continue
		}
		var names []asn1.RawValue
		rest, err := asn1.Unmarshal(ext.Value, &names)
		if err != nil {
			return nil, fmt.Errorf("the certificate's alternative names do not parse: %w", err)
		}
		if len(rest) > 0 {
			return nil, errors.New("the certificate's alternative names have trailing bytes")
		}
		for _, n := range names {
			if n.Class == asn1.ClassContextSpecific && n.Tag == tagURI {
				all = append(all, string(n.Bytes))
			}
		}
	}
	return all, nil
}

// checkSPIFFE checks that the certificate's first URI is the SPIFFE ID of the three names, and that every other one is
// a statement.
func checkSPIFFE(leaf *x509.Certificate, trustDomain, site, nodeID string) error {
	for what, name := range map[string]string{"trust domain": trustDomain, "site": site, "node id": nodeID} {
		if !isName(name) {
			return fmt.Errorf("%s %q is not a name", what, name)
		}
	}
	all, err := uris(leaf)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return errors.New("the certificate has no URI")
	}
	if want := spiffeID(trustDomain, site, nodeID); all[0] != want {
		return fmt.Errorf("the certificate's first URI is %q, want %q", all[0], want)
	}
	for _, uri := range all[1:] {
		if !strings.HasPrefix(uri, statementPrefix) {
			return fmt.Errorf("the certificate's further URI %q is no %q statement", uri, statementPrefix)
		}
	}
	return nil
}

// isName accepts what SPIFFE allows in a path segment. It keeps a slash in a node id from shifting the parts of an ID.
func isName(s string) bool {
	if s == "" || s == "." || s == ".." || len(s) > maxText {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._-", r)
	})
}

// isKind accepts an exact command kind or prefix.*.
func isKind(s string) bool {
	return isName(strings.NewReplacer("/", "-", ":", "-").Replace(strings.TrimSuffix(s, ".*")))
}

// Statements returns the certificate's urn:bc: URIs, sorted. They say things about its key and are never identities.
func Statements(cert *x509.Certificate) ([]string, error) {
	all, err := uris(cert)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(uri string) bool { return !strings.HasPrefix(uri, statementPrefix) })
	slices.Sort(all)
	return all, nil
}

// AttestationKeys returns the statements that name a TPM's attestation key: urn:bc:tpm-ak:<nameAlg>:<digest>.
func AttestationKeys(cert *x509.Certificate) ([]string, error) {
	all, err := Statements(cert)
	return slices.DeleteFunc(all, func(uri string) bool { return !strings.HasPrefix(uri, akPrefix) }), err
}

// Role returns the role that the certificate names in its only OU of the form bc-role:<role>.
func Role(cert *x509.Certificate) (string, error) {
	var roles []string
	for _, ou := range cert.Subject.OrganizationalUnit {
		if role, found := strings.CutPrefix(ou, rolePrefix); found {
			roles = append(roles, role)
		}
	}
	if len(roles) != 1 {
		return "", fmt.Errorf("the certificate names %d roles, want 1", len(roles))
	}
	return roles[0], nil
}

// checkRole checks that the certificate's role is want and one that answers a request for requested. An empty requested
// allows every role.
func checkRole(leaf *x509.Certificate, want, requested string) error {
	role, err := Role(leaf)
	if err != nil {
		return err
	}
	if role != want {
		return fmt.Errorf("the certificate's role is %q, want %q", role, want)
	}
	answers := map[string][]string{
		RoleNode:    {RoleNode, RoleNodeTenant},
		RoleSite:    {RoleSite},
		RoleRamdisk: {RoleRamdisk},
		"":          {RoleNode, RoleNodeTenant, RoleSite, RoleRamdisk},
	}
	if !slices.Contains(answers[requested], role) {
		return fmt.Errorf("role %q does not answer a request for %q", role, requested)
	}
	return nil
}
