package attest_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-tpm/tpm2"

	"github.com/better-compute/bcd/tpmkey/attest"
	"github.com/better-compute/bcd/tpmkey/internal/area"
)

func newKey(t testing.TB, curve elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// withPoint returns the area with the point of a key.
func withPoint(t testing.TB, public tpm2.TPMTPublic, key *ecdsa.PublicKey) []byte {
	t.Helper()
	point, err := key.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	half := len(point) / 2
	public.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgECC, &tpm2.TPMSECCPoint{
		X: tpm2.TPM2BECCParameter{Buffer: point[1 : 1+half]}, Y: tpm2.TPM2BECCParameter{Buffer: point[1+half:]},
	})
	return tpm2.Marshal(public)
}

// software stands for a TPM that says what a test wants it to say.
type software struct {
	ak, node *ecdsa.PrivateKey
	akArea   tpm2.TPMTPublic
	nodeArea tpm2.TPMTPublic
	csr      [32]byte
}

func newSoftware(t testing.TB) *software {
	return &software{
		ak: newKey(t, elliptic.P256()), node: newKey(t, elliptic.P256()), akArea: area.AK(), nodeArea: area.NodeKey,
		csr: sha256.Sum256([]byte("request")),
	}
}

func (s *software) akPublic(t testing.TB) []byte { return withPoint(t, s.akArea, &s.ak.PublicKey) }

func (s *software) statement(t testing.TB) string {
	t.Helper()
	statement, err := attest.AKStatement(withPoint(t, area.AK(), &s.ak.PublicKey))
	if err != nil {
		t.Fatal(err)
	}
	return statement
}

// info is the structure that TPM2_Certify signs about the node's key.
func (s *software) info(t testing.TB) tpm2.TPMSAttest {
	node := withPoint(t, s.nodeArea, &s.node.PublicKey)
	return tpm2.TPMSAttest{
		Magic: tpm2.TPMGeneratedValue, Type: tpm2.TPMSTAttestCertify,
		QualifiedSigner: tpm2.TPM2BName{Buffer: []byte{0, 0xb, 1}},
		ExtraData:       tpm2.TPM2BData{Buffer: s.csr[:]},
		FirmwareVersion: 7,
		Attested: tpm2.NewTPMUAttest(tpm2.TPMSTAttestCertify, &tpm2.TPMSCertifyInfo{
			Name: tpm2.TPM2BName{Buffer: area.Name(node)}, QualifiedName: tpm2.TPM2BName{Buffer: []byte{0, 0xb, 2}},
		}),
	}
}

// certify signs info as the AK.
func (s *software) certify(t testing.TB, info []byte) attest.Certification {
	t.Helper()
	return attest.Certification{
		CertifyInfo: info, Signature: ecdsaSignature(t, s.ak, info),
		NodePublic: withPoint(t, s.nodeArea, &s.node.PublicKey), AKPublic: s.akPublic(t),
	}
}

func ecdsaSignature(t testing.TB, key *ecdsa.PrivateKey, message []byte) []byte {
	t.Helper()
	digest := sha256.Sum256(message)
	r, sig, err := ecdsa.Sign(rand.Reader, key, digest[:])
	if err != nil {
		t.Fatal(err)
	}
	return tpm2.Marshal(tpm2.TPMTSignature{
		SigAlg: tpm2.TPMAlgECDSA,
		Signature: tpm2.NewTPMUSignature(tpm2.TPMAlgECDSA, &tpm2.TPMSSignatureECC{
			Hash:       tpm2.TPMAlgSHA256,
			SignatureR: tpm2.TPM2BECCParameter{Buffer: r.Bytes()}, SignatureS: tpm2.TPM2BECCParameter{Buffer: sig.Bytes()},
		}),
	})
}

func (s *software) good(t testing.TB) attest.Certification {
	return s.certify(t, tpm2.Marshal(s.info(t)))
}

func TestACertificationVerifies(t *testing.T) {
	s := newSoftware(t)
	if err := attest.VerifyCertification(s.good(t), s.statement(t), &s.node.PublicKey, s.csr); err != nil {
		t.Error(err)
	}
}

// Each case is a good certification but for one thing, so that no other check catches it: the reason says which one did.
//
// Req: RN-021
func TestEachCheckOfACertification(t *testing.T) {
	// The AK signs all of these for itself: only what it signs differs.
	resign := func(change func(*tpm2.TPMSAttest)) func(testing.TB, *software) attest.Certification {
		return func(t testing.TB, s *software) attest.Certification {
			info := s.info(t)
			change(&info)
			return s.certify(t, tpm2.Marshal(info))
		}
	}
	akArea := func(change func(*tpm2.TPMTPublic)) func(testing.TB, *software) attest.Certification {
		return func(t testing.TB, s *software) attest.Certification {
			change(&s.akArea)
			return s.good(t)
		}
	}
	nodeArea := func(change func(*tpm2.TPMTPublic)) func(testing.TB, *software) attest.Certification {
		return func(t testing.TB, s *software) attest.Certification {
			change(&s.nodeArea)
			return s.good(t)
		}
	}
	after := func(change func(*attest.Certification)) func(testing.TB, *software) attest.Certification {
		return func(t testing.TB, s *software) attest.Certification {
			c := s.good(t)
			change(&c)
			return c
		}
	}
	for name, test := range map[string]struct {
		make func(testing.TB, *software) attest.Certification
		want string
	}{
		"nothing": {func(testing.TB, *software) attest.Certification { return attest.Certification{} }, attest.ReasonMissing},

		"another AK of the template": {func(t testing.TB, s *software) attest.Certification {
			other := newSoftware(t)
			other.node = s.node
			return other.good(t)
		}, attest.ReasonAK},
		"an AK that signs anything":         {akArea(func(a *tpm2.TPMTPublic) { a.ObjectAttributes.Restricted = false }), attest.ReasonAK},
		"an imported AK":                    {akArea(func(a *tpm2.TPMTPublic) { a.ObjectAttributes.SensitiveDataOrigin = false }), attest.ReasonAK},
		"an AK that moves with its parent":  {akArea(func(a *tpm2.TPMTPublic) { a.ObjectAttributes.FixedTPM = false }), attest.ReasonAK},
		"a duplicable AK":                   {akArea(func(a *tpm2.TPMTPublic) { a.ObjectAttributes.FixedParent = false }), attest.ReasonAK},
		"an AK under the lockout":           {akArea(func(a *tpm2.TPMTPublic) { a.ObjectAttributes.NoDA = false }), attest.ReasonAK},
		"an AK with a policy":               {akArea(func(a *tpm2.TPMTPublic) { a.AuthPolicy.Buffer = make([]byte, 32) }), attest.ReasonAK},
		"an AK with another name algorithm": {akArea(func(a *tpm2.TPMTPublic) { a.NameAlg = tpm2.TPMAlgSHA384 }), attest.ReasonAK},
		"no AK":                             {after(func(c *attest.Certification) { c.AKPublic = nil }), attest.ReasonAK},
		"an AK and more":                    {after(func(c *attest.Certification) { c.AKPublic = append(c.AKPublic, 0) }), attest.ReasonAK},
		"an AK cut short":                   {after(func(c *attest.Certification) { c.AKPublic = c.AKPublic[:len(c.AKPublic)-1] }), attest.ReasonAK},
		"a node's key as the AK":            {akArea(func(a *tpm2.TPMTPublic) { *a = area.NodeKey }), attest.ReasonAK},

		"no signature": {after(func(c *attest.Certification) { c.Signature = nil }), attest.ReasonSignature},
		"a signature of another key": {func(t testing.TB, s *software) attest.Certification {
			c := s.good(t)
			c.Signature = ecdsaSignature(t, s.node, c.CertifyInfo)
			return c
		}, attest.ReasonSignature},
		"a signature of other bytes": {after(func(c *attest.Certification) {
			c.CertifyInfo = bytes.Clone(c.CertifyInfo)
			c.CertifyInfo[len(c.CertifyInfo)-1] ^= 1 // the qualified name, which nothing else looks at
		}), attest.ReasonSignature},
		"a signature and more": {after(func(c *attest.Certification) { c.Signature = append(c.Signature, 0) }), attest.ReasonSignature},
		"a signature that says SHA-1": {after(func(c *attest.Certification) {
			c.Signature = bytes.Clone(c.Signature)
			c.Signature[3] = 0x04
		}), attest.ReasonSignature},
		"a signature of another scheme": {after(func(c *attest.Certification) {
			c.Signature = bytes.Clone(c.Signature)
			c.Signature[1] = 0x1a // ECDAA, of the same shape
		}), attest.ReasonSignature},
		"a huge signature": {after(func(c *attest.Certification) { c.Signature = append(c.Signature, make([]byte, 1<<20)...) }), attest.ReasonSignature},

		"no TPM's structure": {func(t testing.TB, s *software) attest.Certification {
			info := tpm2.Marshal(s.info(t))
			info[0] = 0
			return s.certify(t, info)
		}, attest.ReasonMismatch},
		"a quote": {resign(func(i *tpm2.TPMSAttest) {
			i.Type = tpm2.TPMSTAttestQuote
			i.Attested = tpm2.NewTPMUAttest(tpm2.TPMSTAttestQuote, &tpm2.TPMSQuoteInfo{PCRDigest: tpm2.TPM2BDigest{Buffer: make([]byte, 32)}})
		}), attest.ReasonMismatch},
		// TPMS_CREATION_INFO has the shape of TPMS_CERTIFY_INFO: a Name, then bytes. Only the type tells them apart.
		"a certified creation": {resign(func(i *tpm2.TPMSAttest) {
			certified, err := i.Attested.Certify()
			if err != nil {
				panic(err)
			}
			i.Type = tpm2.TPMSTAttestCreation
			i.Attested = tpm2.NewTPMUAttest(tpm2.TPMSTAttestCreation, &tpm2.TPMSCreationInfo{
				ObjectName: certified.Name, CreationHash: tpm2.TPM2BDigest{Buffer: make([]byte, 32)},
			})
		}), attest.ReasonMismatch},
		"a certification and more": {func(t testing.TB, s *software) attest.Certification {
			return s.certify(t, append(tpm2.Marshal(s.info(t)), 0))
		}, attest.ReasonMismatch},
		"an empty certification": {func(t testing.TB, s *software) attest.Certification { return s.certify(t, nil) }, attest.ReasonMismatch},
		"another key's Name": {func(t testing.TB, s *software) attest.Certification {
			other := newSoftware(t)
			info := s.info(t)
			info.Attested = other.info(t).Attested
			return s.certify(t, tpm2.Marshal(info))
		}, attest.ReasonMismatch},
		"a key with another name algorithm": {nodeArea(func(a *tpm2.TPMTPublic) { a.NameAlg = tpm2.TPMAlgSHA384 }), attest.ReasonAttributes},
		"another public area": {func(t testing.TB, s *software) attest.Certification {
			c := s.good(t)
			c.NodePublic = withPoint(t, area.NodeKey, &newKey(t, elliptic.P256()).PublicKey)
			return c
		}, attest.ReasonMismatch},
		"no public area": {after(func(c *attest.Certification) { c.NodePublic = nil }), attest.ReasonMismatch},

		"another request": {resign(func(i *tpm2.TPMSAttest) {
			other := sha256.Sum256([]byte("another request"))
			i.ExtraData.Buffer = other[:]
		}), attest.ReasonQualifying},
		"no request":       {resign(func(i *tpm2.TPMSAttest) { i.ExtraData.Buffer = nil }), attest.ReasonQualifying},
		"a longer request": {resign(func(i *tpm2.TPMSAttest) { i.ExtraData.Buffer = append(bytes.Clone(i.ExtraData.Buffer), 0) }), attest.ReasonQualifying},

		"a key that can be duplicated":      {nodeArea(func(a *tpm2.TPMTPublic) { a.ObjectAttributes.FixedParent = false }), attest.ReasonAttributes},
		"a key that moves with its parent":  {nodeArea(func(a *tpm2.TPMTPublic) { a.ObjectAttributes.FixedTPM = false }), attest.ReasonAttributes},
		"an imported key":                   {nodeArea(func(a *tpm2.TPMTPublic) { a.ObjectAttributes.SensitiveDataOrigin = false }), attest.ReasonAttributes},
		"a key that decrypts":               {nodeArea(func(a *tpm2.TPMTPublic) { a.ObjectAttributes.Decrypt = true }), attest.ReasonAttributes},
		"a restricted key":                  {nodeArea(func(a *tpm2.TPMTPublic) { a.ObjectAttributes.Restricted = true }), attest.ReasonAttributes},
		"a key under the lockout":           {nodeArea(func(a *tpm2.TPMTPublic) { a.ObjectAttributes.NoDA = false }), attest.ReasonAttributes},
		"a key that a policy administrates": {nodeArea(func(a *tpm2.TPMTPublic) { a.ObjectAttributes.AdminWithPolicy = true }), attest.ReasonAttributes},
		"a key with a policy":               {nodeArea(func(a *tpm2.TPMTPublic) { a.AuthPolicy.Buffer = make([]byte, 32) }), attest.ReasonAttributes},
		"a key on another curve": {nodeArea(func(a *tpm2.TPMTPublic) {
			parms, err := a.Parameters.ECCDetail()
			if err != nil {
				panic(err)
			}
			other := *parms
			other.CurveID = tpm2.TPMECCBNP256
			a.Parameters = tpm2.NewTPMUPublicParms(tpm2.TPMAlgECC, &other)
		}), attest.ReasonAttributes},
		"a key of any scheme": {nodeArea(func(a *tpm2.TPMTPublic) {
			a.Parameters = tpm2.NewTPMUPublicParms(tpm2.TPMAlgECC, &tpm2.TPMSECCParms{CurveID: tpm2.TPMECCNistP256})
		}), attest.ReasonAttributes},
		"an AK as the node's key": {nodeArea(func(a *tpm2.TPMTPublic) { *a = area.AK() }), attest.ReasonAttributes},
		"a public area and more, certified": {func(t testing.TB, s *software) attest.Certification {
			node := append(withPoint(t, s.nodeArea, &s.node.PublicKey), 0)
			info := s.info(t)
			info.Attested = tpm2.NewTPMUAttest(tpm2.TPMSTAttestCertify, &tpm2.TPMSCertifyInfo{Name: tpm2.TPM2BName{Buffer: area.Name(node)}})
			c := s.certify(t, tpm2.Marshal(info))
			c.NodePublic = node
			return c
		}, attest.ReasonAttributes},
		"another key than the request's": {func(t testing.TB, s *software) attest.Certification {
			other := newSoftware(t)
			other.ak = s.ak
			return other.good(t)
		}, attest.ReasonMismatch},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSoftware(t)
			statement, key, csr := s.statement(t), &s.node.PublicKey, s.csr
			err := attest.VerifyCertification(test.make(t, s), statement, key, csr)
			if got := attest.ReasonOf(err); got != test.want {
				t.Errorf("%v: reason %q, want %q", err, got, test.want)
			}
			if err != nil && !strings.HasPrefix(err.Error(), test.want+": ") {
				t.Errorf("%v: does not start with its reason", err)
			}
			if wrapped := attest.ReasonOf(fmt.Errorf("cannot renew: %w", err)); wrapped != test.want {
				t.Errorf("wrapped, the reason is %q", wrapped)
			}
		})
	}
}

func TestACertificationIsBoundToItsArguments(t *testing.T) {
	s := newSoftware(t)
	c, statement := s.good(t), s.statement(t)
	for name, test := range map[string]struct {
		statement string
		key       crypto.PublicKey
		csr       [32]byte
		want      string
	}{
		"no statement":           {"", &s.node.PublicKey, s.csr, attest.ReasonAK},
		"an upper-case one":      {strings.ToUpper(statement), &s.node.PublicKey, s.csr, attest.ReasonAK},
		"another one":            {newSoftware(t).statement(t), &s.node.PublicKey, s.csr, attest.ReasonAK},
		"another request":        {statement, &s.node.PublicKey, [32]byte{1}, attest.ReasonQualifying},
		"another request's key":  {statement, &newKey(t, elliptic.P256()).PublicKey, s.csr, attest.ReasonMismatch},
		"a key on another curve": {statement, &newKey(t, elliptic.P384()).PublicKey, s.csr, attest.ReasonMismatch},
		"no key":                 {statement, nil, s.csr, attest.ReasonMismatch},
		"the private key":        {statement, s.node, s.csr, attest.ReasonMismatch},
	} {
		t.Run(name, func(t *testing.T) {
			err := attest.VerifyCertification(c, test.statement, test.key, test.csr)
			if got := attest.ReasonOf(err); got != test.want {
				t.Errorf("%v: reason %q, want %q", err, got, test.want)
			}
		})
	}
	if got := attest.ReasonOf(nil); got != "" {
		t.Errorf("no error has the reason %q", got)
	}
}

// Where several checks would fail, the first one of the design's order speaks.
func TestTheOrderOfTheChecks(t *testing.T) {
	order := []struct {
		want  string
		spoil func(*attest.Certification, *software)
	}{
		{attest.ReasonAK, func(c *attest.Certification, _ *software) { c.AKPublic = c.NodePublic }},
		{attest.ReasonSignature, func(c *attest.Certification, _ *software) { c.Signature = c.NodePublic }},
		{attest.ReasonMismatch, func(_ *attest.Certification, s *software) {}},
	}
	for i, first := range order[:2] {
		s := newSoftware(t)
		statement := s.statement(t)
		info := s.info(t)
		info.Type = tpm2.TPMSTAttestQuote // also a mismatch,
		info.Attested = tpm2.NewTPMUAttest(tpm2.TPMSTAttestQuote, &tpm2.TPMSQuoteInfo{})
		info.ExtraData.Buffer = nil // of another request
		c := s.certify(t, tpm2.Marshal(info))
		for _, later := range order[i:] {
			later.spoil(&c, s)
		}
		err := attest.VerifyCertification(c, statement, nil, [32]byte{})
		if got := attest.ReasonOf(err); got != first.want {
			t.Errorf("%v: reason %q, want %q", err, got, first.want)
		}
	}
	// The rest of the order, with a signature of the AK over each.
	s := newSoftware(t)
	statement := s.statement(t)
	s.nodeArea.ObjectAttributes.Decrypt = true
	bad := s.info(t)
	bad.ExtraData.Buffer = nil
	c := s.certify(t, tpm2.Marshal(bad))
	if got := attest.ReasonOf(attest.VerifyCertification(c, statement, nil, s.csr)); got != attest.ReasonQualifying {
		t.Errorf("another request, other attributes and another key: %q", got)
	}
	c = s.certify(t, tpm2.Marshal(s.info(t)))
	if got := attest.ReasonOf(attest.VerifyCertification(c, statement, nil, s.csr)); got != attest.ReasonAttributes {
		t.Errorf("other attributes and another key: %q", got)
	}
}

// A TPM may leave out leading zeros of a coordinate, and the Name is then over the shorter area.
func TestAPointWithALeadingZero(t *testing.T) {
	s := newSoftware(t)
	for s.node.X.BitLen() > 248 {
		s.node = newKey(t, elliptic.P256())
	}
	public := area.NodeKey
	public.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgECC, &tpm2.TPMSECCPoint{
		X: tpm2.TPM2BECCParameter{Buffer: s.node.X.Bytes()}, Y: tpm2.TPM2BECCParameter{Buffer: s.node.Y.Bytes()},
	})
	node := tpm2.Marshal(public)
	info := s.info(t)
	info.Attested = tpm2.NewTPMUAttest(tpm2.TPMSTAttestCertify, &tpm2.TPMSCertifyInfo{Name: tpm2.TPM2BName{Buffer: area.Name(node)}})
	c := s.certify(t, tpm2.Marshal(info))
	c.NodePublic = node
	if err := attest.VerifyCertification(c, s.statement(t), &s.node.PublicKey, s.csr); err != nil {
		t.Error(err)
	}
}

// Req: NC-010
func TestTheStatementOfAnAK(t *testing.T) {
	s := newSoftware(t)
	public := s.akPublic(t)
	statement, err := attest.AKStatement(public)
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("urn:bc:tpm-ak:sha256:%x", sha256.Sum256(public)); statement != want {
		t.Errorf("%q, want %q", statement, want)
	}
	for name, bad := range map[string][]byte{
		"nothing":   nil,
		"a node":    withPoint(t, area.NodeKey, &s.ak.PublicKey),
		"no point":  tpm2.Marshal(area.AK()), // x is the seed, y is missing
		"more":      append(bytes.Clone(public), 0),
		"less":      public[:len(public)-1],
		"huge":      append(bytes.Clone(public), make([]byte, 1<<16)...),
		"off curve": func() []byte { b := bytes.Clone(public); b[len(b)-1] ^= 1; return b }(),
	} {
		if statement, err := attest.AKStatement(bad); err == nil {
			t.Errorf("%s: %q", name, statement)
		}
	}
}
