package joinservice_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"math/big"
	"testing"
	"time"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	joinv1 "github.com/better-compute/bcd/api/join/v1"
	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/joinservice"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/signing"
	"github.com/better-compute/bcd/tpmkey"
	"github.com/better-compute/bcd/tpmkey/attest"
	"github.com/better-compute/bcd/tpmkey/tpmkeytest"
)

// tpm switches on the attestor tpm beside the join token and x509pop.
func tpm(change ...func(*joinservice.TPMOptions)) func(*joinservice.Options) {
	return func(o *joinservice.Options) {
		var to joinservice.TPMOptions
		for _, f := range change {
			f(&to)
		}
		a, err := joinservice.NewTPM(o.Keys, to)
		if err != nil {
			panic(err)
		}
		o.Attestors = append(o.Attestors, joinservice.JoinToken{Keys: o.Keys.Decryption}, joinservice.X509PoP{}, a)
	}
}

func enrollment(o *joinservice.TPMOptions) { o.Enrollment = true }

// makerOf has the TPMs of makers with these roots join the world's pool.
func makerOf(roots ...*x509.Certificate) func(*joinservice.TPMOptions) {
	return func(o *joinservice.TPMOptions) { o.Roots, o.Pools = roots, map[string]string{siteID: poolID} }
}

// tpmMachine is hardware with a TPM.
type tpmMachine struct {
	t      testing.TB
	tpm    *tpmkeytest.TPM
	store  *tpmkey.Store
	id     tpmkey.Identity
	claims *daemonv1.HardwareClaims
	// chain is what the machine shows of its EK's maker.
	chain [][]byte
}

func newTPMMachine(t testing.TB) *tpmMachine {
	t.Helper()
	return tpmMachineOf(t, tpmkeytest.Any(t), newMachine(t).claims)
}

func tpmMachineOf(t testing.TB, chip *tpmkeytest.TPM, claims *daemonv1.HardwareClaims, change ...func(*tpmkey.Options)) *tpmMachine {
	t.Helper()
	m := &tpmMachine{t: t, tpm: chip, claims: claims}
	o := tpmkey.Options{Mode: tpmkey.Required, Device: chip.Device()}
	for _, f := range change {
		f(&o)
	}
	var err error
	if m.store, err = tpmkey.New(o); err != nil {
		t.Fatal(err)
	}
	if m.id, err = m.store.Attester().Identify(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.chain = m.id.EKCertificates
	return m
}

func (m *tpmMachine) ek() [32]byte { return m.id.EK.Hash() }

func (m *tpmMachine) ekText() string { ek := m.ek(); return hex.EncodeToString(ek[:]) }

func (m *tpmMachine) statement() string {
	m.t.Helper()
	s, err := attest.AKStatement(m.id.AKPublic)
	if err != nil {
		m.t.Fatal(err)
	}
	return s
}

// nodeKey makes a node's key in the TPM.
func (m *tpmMachine) nodeKey() crypto.Signer {
	m.t.Helper()
	_, key, err := m.store.New(m.t.Context())
	if err != nil {
		m.t.Fatal(err)
	}
	return key
}

func (m *tpmMachine) certify(key crypto.Signer, csr []byte) *daemonv1.KeyAttestation {
	m.t.Helper()
	c, err := m.store.Attester().Certify(m.t.Context(), key, sha256.Sum256(csr))
	if err != nil {
		m.t.Fatal(err)
	}
	return &daemonv1.KeyAttestation{CertifyInfo: c.CertifyInfo, Signature: c.Signature, NodePublic: c.NodePublic, AkPublic: c.AKPublic}
}

func (m *tpmMachine) challengeRequest(csr []byte) *daemonv1.ChallengeRequest {
	digest := sha256.Sum256(csr)
	return &daemonv1.ChallengeRequest{
		EkSpki: m.id.EK.SPKI, EkTemplate: m.id.EK.Template, EkChain: m.chain, AkPublic: m.id.AKPublic, CsrSha256: digest[:],
	}
}

// answer has the TPM answer a challenge.
func (m *tpmMachine) answer(c *daemonv1.ChallengeResponse, csr []byte) *daemonv1.TpmEvidence {
	m.t.Helper()
	secret, err := m.store.Attester().ActivateCredential(m.t.Context(), c.GetCredentialBlob(), c.GetEncryptedSecret())
	if err != nil {
		m.t.Fatal(err)
	}
	return &daemonv1.TpmEvidence{Proof: attest.Proof([32]byte(secret), sha256.Sum256(csr)), State: c.GetState()}
}

func challenge(t testing.TB, s *joinservice.Service, r *daemonv1.ChallengeRequest) *daemonv1.ChallengeResponse {
	t.Helper()
	c, err := s.Challenge(context.Background(), &joinv1.ChallengeRequest{Request: r})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// tpmCall is a join by a TPM in the making.
type tpmCall struct {
	*call

	evidence *daemonv1.TpmEvidence
}

// tpmJoin returns the Join of a machine with a key and a CSR of it: the challenge is asked for and answered, the key certified.
func (w *world) tpmJoin(m *tpmMachine, key crypto.Signer, csr []byte, change ...func(*tpmCall)) *joinv1.JoinRequest {
	w.t.Helper()
	e := m.answer(challenge(w.t, w.svc, m.challengeRequest(csr)), csr)
	e.KeyAttestation = m.certify(key, csr)
	return w.tpmRequest(m, key, csr, e, change...)
}

// tpmRequest returns the Join of a machine with the evidence.
func (w *world) tpmRequest(m *tpmMachine, key crypto.Signer, csr []byte, e *daemonv1.TpmEvidence, change ...func(*tpmCall)) *joinv1.JoinRequest {
	w.t.Helper()
	return w.request(&machine{claims: m.claims, csr: csr}, token{}, func(c *call) {
		c.key, c.body.Attestor = key, "tpm"
		tc := &tpmCall{c, e}
		for _, f := range change {
			f(tc)
		}
		c.body.Evidence = &daemonv1.Evidence{Kind: &daemonv1.Evidence_Tpm{Tpm: tc.evidence}}
	})
}

// newTPMJoin is tpmJoin with a new key.
func (w *world) newTPMJoin(m *tpmMachine, change ...func(*tpmCall)) *joinv1.JoinRequest {
	w.t.Helper()
	key := m.nodeKey()
	return w.tpmJoin(m, key, newCSR(w.t, key), change...)
}

// tpmMember is a machine that joined by its TPM.
type tpmMember struct {
	*tpmMachine

	nodeID string
	key    crypto.Signer
	leaf   []byte
}

func (w *world) mustJoinByTPM(m *tpmMachine, change ...func(*tpmCall)) *tpmMember {
	w.t.Helper()
	key := m.nodeKey()
	a := w.mustAdmit(w.tpmJoin(m, key, newCSR(w.t, key), change...))
	return &tpmMember{m, a.GetNodeId(), key, a.GetChain()[0]}
}

// allow lists the machine's EK for the pool.
func (w *world) allow(m *tpmMachine, change ...func(*store.EKAllow)) store.EKAllow {
	w.t.Helper()
	e := store.EKAllow{
		ID: store.NewID(store.PrefixEKAllow, epoch), TenantID: w.root, SiteID: w.site, PoolID: w.pool, EKSHA256: m.ek(), CreatedBy: "key_test",
	}
	for _, f := range change {
		f(&e)
	}
	w.write(func(tx *store.Tx) error { return tx.InsertEKAllow(e) })
	return e
}

// tpmRenewal returns the Renew of a member for the next key, with the attestation.
func (w *world) tpmRenewal(m *tpmMember, csr []byte, attested *daemonv1.KeyAttestation) (*joinv1.RenewRequest, []byte) {
	w.t.Helper()
	pop := signing.PoP(sha256.Sum256(csr), w.now(), m.nodeID)
	sig, err := signing.Sign(m.key, signing.RenewPoP, pop)
	if err != nil {
		w.t.Fatal(err)
	}
	return &joinv1.RenewRequest{Peer: &joinv1.Peer{Certificate: m.leaf}, Request: &daemonv1.RenewRequest{
		Csr: csr, Chain: [][]byte{m.leaf}, ClientTimeUnixMs: w.now().UnixMilli(), PopSig: sig, KeyAttestation: attested,
	}}, pop
}

// maker certifies EKs, as the maker of a chip does.
type maker struct {
	root *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newMaker(t testing.TB) *maker {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Contoso TPM Root"}, NotBefore: epoch.Add(-time.Hour),
		NotAfter: epoch.Add(24 * time.Hour), BasicConstraintsValid: true, IsCA: true, KeyUsage: x509.KeyUsageCertSign,
	}
	m := &maker{key: key}
	m.root = signed(t, c, c, &key.PublicKey, key)
	return m
}

func signed(t testing.TB, c, parent *x509.Certificate, key crypto.PublicKey, by crypto.Signer) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key, by)
	if err != nil {
		t.Fatal(err)
	}
	made, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// certificate is the EK certificate of a machine's TPM.
func (k *maker) certificate(m *tpmMachine) []byte {
	m.t.Helper()
	ek, err := x509.ParsePKIXPublicKey(m.id.EK.SPKI)
	if err != nil {
		m.t.Fatal(err)
	}
	return signed(m.t, &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: epoch.Add(-time.Hour), NotAfter: epoch.Add(24 * time.Hour), BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageKeyAgreement, UnknownExtKeyUsage: []asn1.ObjectIdentifier{{2, 23, 133, 8, 1}},
	}, k.root, ek, k.key).Raw
}

// refusedTPM runs a Join that must be refused for the reason, and told to the tenant.
func (w *world) refusedTPM(req *joinv1.JoinRequest, tenant, reason string) events.JoinRefused {
	w.t.Helper()
	e := w.refusedJoin(req, tenant)
	if e.Reason != reason || e.Attestor != "tpm" {
		w.t.Errorf("reason %q by %q, want %q", e.Reason, e.Attestor, reason)
	}
	return e
}

// withEK is the same machine with another endorsement key of its TPM, by its NV index.
func (m *tpmMachine) withEK(index uint32) *tpmMachine {
	m.t.Helper()
	other := *m
	var err error
	if other.store, err = tpmkey.New(tpmkey.Options{Mode: tpmkey.Required, Device: m.tpm.Device(), EK: index}); err != nil {
		m.t.Fatal(err)
	}
	if other.id, err = other.store.Attester().Identify(m.t.Context()); err != nil {
		m.t.Fatal(err)
	}
	if other.ek() == m.ek() {
		m.t.Fatal("the same endorsement key")
	}
	return &other
}
