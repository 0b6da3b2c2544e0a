package joinservice_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"testing"
	"time"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	joinv1 "github.com/better-compute/bcd/api/join/v1"
	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/joinservice"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/tpmkey/attest"
)

// Each fault alone is the reason, and with later faults beside it still is. The tenant is told from the list or the binding on.
func TestTPMRefusalsInOrder(t *testing.T) {
	m := newTPMMachine(t)
	faults := []struct {
		reason string
		owner  bool
		add    func(w *world, c *tpmCall)
	}{
		{"join:pool-attestor", true, func(w *world, _ *tpmCall) {
			w.updatePool(func(p *store.Pool) { p.Policy.JoinAttestors = []string{"join-token"} })
		}},
		{"join:pool", true, func(w *world, _ *tpmCall) { w.updatePool(func(p *store.Pool) { p.ArchivedAt = epoch }) }},
		{"join:reclaim", true, func(w *world, _ *tpmCall) { // another node has the hardware
			w.write(func(tx *store.Tx) error {
				return tx.InsertNode(w.nodeRow(store.NewID(store.PrefixNode, epoch), m.claims))
			})
		}},
		{"join:node-id", true, func(_ *world, c *tpmCall) { c.body.NodeId = store.NewID(store.PrefixNode, epoch) }},
		{"tpm:role-mismatch", true, func(_ *world, c *tpmCall) { c.body.Role = "ramdisk" }},
		{"tpm:key-attestation-missing", true, func(_ *world, c *tpmCall) { c.evidence.KeyAttestation = nil }},
		{"tpm:ek", false, func(w *world, _ *tpmCall) {
			w.write(func(tx *store.Tx) error {
				all, err := tx.EKAllowsOf(m.ek())
				if err == nil {
					_, err = tx.RemoveEKAllow(all[0].ID)
				}
				return err
			})
		}},
		{"tpm:activation", false, func(_ *world, c *tpmCall) { c.evidence.Proof = bytes.Repeat([]byte{1}, 32) }},
		{"tpm:challenge", false, func(_ *world, c *tpmCall) { c.evidence.State = append(bytes.Clone(c.evidence.State), 0) }},
	}
	for n := 1; n <= len(faults); n++ {
		for _, alone := range []bool{true, false} {
			want, from := faults[n-1], 0
			if alone {
				from = n - 1
			}
			w := newWorld(t, tpm())
			w.giveToOther()
			w.allow(m, func(e *store.EKAllow) { e.TenantID = w.other })
			req := w.newTPMJoin(m, func(c *tpmCall) {
				for _, f := range faults[from:n] {
					f.add(w, c)
				}
			})
			tenant := w.root
			if want.owner {
				tenant = w.other
			}
			e := w.refusedTPM(req, tenant, want.reason)
			if proved := want.reason != "tpm:activation" && want.reason != "tpm:challenge"; (e.EKSHA256 == m.ekText()) != proved || !proved && e.EKSHA256 != "" {
				t.Errorf("%s: event %+v", want.reason, e)
			}
			if got := len(eventsOf[events.JoinRefused](w, w.root)) + len(eventsOf[events.JoinRefused](w, w.other)); got != 1 {
				t.Errorf("%s: %d events", want.reason, got)
			}
		}
	}
}

// Answers to challenges that prove nothing.
func TestAnswersToAChallengeThatAreRefused(t *testing.T) {
	m, other := newTPMMachine(t), newTPMMachine(t)
	for name, c := range map[string]struct {
		reason string
		change func(w *world, c *tpmCall)
	}{
		"no evidence":       {"tpm:challenge", func(_ *world, c *tpmCall) { c.evidence = nil }},
		"no state":          {"tpm:challenge", func(_ *world, c *tpmCall) { c.evidence.State = nil }},
		"a short state":     {"tpm:challenge", func(_ *world, c *tpmCall) { c.evidence.State = c.evidence.State[:31] }},
		"a state cut short": {"tpm:challenge", func(_ *world, c *tpmCall) { c.evidence.State = c.evidence.State[:len(c.evidence.State)-1] }},
		"a huge state":      {"tpm:challenge", func(_ *world, c *tpmCall) { c.evidence.State = make([]byte, 40<<10) }},
		"a changed salt":    {"tpm:challenge", func(_ *world, c *tpmCall) { c.evidence.State[0] ^= 1 }},
		"a changed state":   {"tpm:challenge", func(_ *world, c *tpmCall) { c.evidence.State[40] ^= 1 }},
		"a changed tag":     {"tpm:challenge", func(_ *world, c *tpmCall) { c.evidence.State[len(c.evidence.State)-1] ^= 1 }},
		"no proof":          {"tpm:activation", func(_ *world, c *tpmCall) { c.evidence.Proof = nil }},
		"a proof and more":  {"tpm:activation", func(_ *world, c *tpmCall) { c.evidence.Proof = append(c.evidence.Proof, 0) }},
		"a proof of nothing": {"tpm:activation", func(_ *world, c *tpmCall) {
			c.evidence.Proof = attest.Proof([32]byte{}, sha256.Sum256(c.body.GetCsr()))
		}},
		"after five minutes": {"tpm:challenge", func(w *world, _ *tpmCall) { w.clock.add(5 * time.Minute) }},
		"another request's": {"tpm:challenge", func(w *world, c *tpmCall) {
			c.evidence.State = challenge(t, w.svc, m.challengeRequest([]byte("another"))).GetState()
		}},
		"another challenge's": {"tpm:activation", func(w *world, c *tpmCall) {
			c.evidence.State = challenge(t, w.svc, m.challengeRequest(c.body.GetCsr())).GetState()
		}},
		"another machine's": {"tpm:activation", func(w *world, c *tpmCall) {
			c.evidence.State = challenge(t, w.svc, other.challengeRequest(c.body.GetCsr())).GetState()
		}},
		"no site":                   {"join:site", func(_ *world, c *tpmCall) { c.body.Site = "" }},
		"another site":              {"join:site", func(w *world, c *tpmCall) { c.body.Site = w.otherSite() }},
		"a gateway of another site": {"join:site", func(w *world, c *tpmCall) { c.peer = &joinv1.Peer{GatewaySites: []string{w.otherSite()}} }},
		"a site agent":              {"tpm:role-mismatch", func(_ *world, c *tpmCall) { c.body.Role = "site" }},
		"a ramdisk":                 {"tpm:role-mismatch", func(_ *world, c *tpmCall) { c.body.Role = "ramdisk" }},
		"no role":                   {"tpm:role-mismatch", func(_ *world, c *tpmCall) { c.body.Role = "" }},
		"a key without attestation": {"tpm:key-attestation-missing", func(_ *world, c *tpmCall) { c.evidence.KeyAttestation = &daemonv1.KeyAttestation{} }},
		"another TPM's attestation": {"tpm:key-attestation-ak", func(_ *world, c *tpmCall) {
			c.evidence.KeyAttestation = other.certify(other.nodeKey(), c.body.GetCsr())
		}},
		"another request's, of this": {"tpm:node-key-qualifying", func(_ *world, c *tpmCall) { c.evidence.KeyAttestation = m.certify(m.nodeKey(), []byte("another")) }},
		"another key of this TPM":    {"tpm:node-key-mismatch", func(_ *world, c *tpmCall) { c.evidence.KeyAttestation = m.certify(m.nodeKey(), c.body.GetCsr()) }},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tpm())
			w.allow(m)
			w.refusedTPM(w.newTPMJoin(m, func(call *tpmCall) { c.change(w, call) }), w.root, c.reason)
			if len(w.nodes()) != 0 {
				t.Error("a node was made")
			}
			w.mustJoinByTPM(m) // and the machine is none the worse
		})
	}
}

// An answer is good until the last instant of its five minutes.
func TestAnAnswerWithinFiveMinutes(t *testing.T) {
	w, m := newWorld(t, tpm()), newTPMMachine(t)
	w.allow(m)
	req := w.newTPMJoin(m)
	w.clock.add(5*time.Minute - time.Millisecond)
	w.mustAdmit(req)
	// What was admitted is not admitted again by a stale answer, and a fresh one is.
	w.clock.add(time.Millisecond)
	w.refusedTPM(req, w.root, "tpm:challenge")
}

// A key outside the TPM that joins with an attestation of one inside.
func TestASoftwareKeyDoesNotJoinByTPM(t *testing.T) {
	w, m := newWorld(t, tpm()), newTPMMachine(t)
	w.allow(m)
	key := newKey(t)
	csr := newCSR(t, key)
	e := m.answer(challenge(t, w.svc, m.challengeRequest(csr)), csr)
	e.KeyAttestation = m.certify(m.nodeKey(), csr)
	w.refusedTPM(w.tpmRequest(m, key, csr, e), w.root, "tpm:node-key-mismatch")
}

// Another AK in the challenge than in the attestation: the credential proves the first one only.
func TestTheAttestationIsOfTheChallengedAK(t *testing.T) {
	w, m, other := newWorld(t, tpm()), newTPMMachine(t), newTPMMachine(t)
	w.allow(m)
	key := other.nodeKey()
	csr := newCSR(t, key)
	e := m.answer(challenge(t, w.svc, m.challengeRequest(csr)), csr)
	e.KeyAttestation = other.certify(key, csr)
	w.refusedTPM(w.tpmRequest(other, key, csr, e), w.root, "tpm:key-attestation-ak")
}

// Nobody of the tenant vouched for a TPM that only its maker or nobody knows: its refusals are the root tenant's.
func TestWhoIsToldOfAStrangersTPM(t *testing.T) {
	m := newTPMMachine(t)
	contoso := newMaker(t)
	m.chain = [][]byte{contoso.certificate(m)}
	for name, option := range map[string]func(*joinservice.TPMOptions){"its maker": makerOf(contoso.root), "a person": enrollment} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tpm(option))
			w.giveToOther()
			w.write(func(tx *store.Tx) error {
				s, err := tx.Site(w.site)
				if err == nil {
					s.TenantID = w.other
					err = tx.UpdateSite(s)
				}
				return err
			})
			for reason, change := range map[string]func(*tpmCall){
				"tpm:role-mismatch":      func(c *tpmCall) { c.body.Role = "site" },
				"tpm:key-attestation-ak": func(c *tpmCall) { c.evidence.KeyAttestation.AkPublic = []byte{1} },
				"join:node-id":           func(c *tpmCall) { c.body.NodeId = store.NewID(store.PrefixNode, epoch) },
				"join:site":              func(c *tpmCall) { c.peer = &joinv1.Peer{GatewaySites: []string{"site_x"}} },
			} {
				w.refusedTPM(w.newTPMJoin(m, change), w.root, reason)
			}
			if all := w.eventTypes(w.other); len(all) != 0 {
				t.Errorf("the tenant was told %v", all)
			}
			// Once it is bound, the owner is told.
			w.allow(m, func(e *store.EKAllow) { e.TenantID = w.other })
			n := w.mustJoinByTPM(m)
			w.write(func(tx *store.Tx) error {
				all, err := tx.EKAllowsOf(m.ek())
				if err == nil {
					_, err = tx.RemoveEKAllow(all[0].ID)
				}
				return err
			})
			w.refusedTPM(w.newTPMJoin(m, func(c *tpmCall) { c.body.Role = "site" }), w.other, "tpm:role-mismatch")
			if w.node(n.nodeID).TenantID != w.other {
				t.Error("another tenant's node")
			}
		})
	}
}

// An entry is for its site. Where nothing at the machine's own site vouches for it, the tenant that listed it is told.
func TestATPMThatIsListedElsewhere(t *testing.T) {
	w, m := newWorld(t, tpm()), newTPMMachine(t)
	us := w.otherSite()
	pool := store.NewID(store.PrefixPool, epoch)
	w.write(func(tx *store.Tx) error {
		return tx.InsertPool(store.Pool{ID: pool, TenantID: w.other, SiteID: us, Name: "theirs", Agent: store.AgentBCD})
	})
	w.allow(m, func(e *store.EKAllow) { e.TenantID, e.SiteID, e.PoolID = w.other, us, pool })
	w.refusedTPM(w.newTPMJoin(m), w.other, "join:site")
	w.allow(m) // listed at both: each machine's own site counts
	n := w.mustJoinByTPM(m)
	if got := w.node(n.nodeID); got.SiteID != w.site || got.TenantID != w.root {
		t.Errorf("node %+v", got)
	}
	// Bound, it stays where it is: the other entry does not move it.
	w.refusedTPM(w.newTPMJoin(m, func(c *tpmCall) { c.body.Site = us }), w.root, "join:site")
}

func TestChallengesThatAreRefused(t *testing.T) {
	w, m := newWorld(t, tpm()), newTPMMachine(t)
	w.allow(m)
	ak := func(change func([]byte) []byte) func(*daemonv1.ChallengeRequest) {
		return func(r *daemonv1.ChallengeRequest) { r.AkPublic = change(bytes.Clone(r.GetAkPublic())) }
	}
	for name, c := range map[string]struct {
		reason string
		change func(*daemonv1.ChallengeRequest)
	}{
		"no digest":           {"tpm:challenge", func(r *daemonv1.ChallengeRequest) { r.CsrSha256 = nil }},
		"a long digest":       {"tpm:challenge", func(r *daemonv1.ChallengeRequest) { r.CsrSha256 = append(r.CsrSha256, 0) }},
		"many certificates":   {"tpm:challenge", func(r *daemonv1.ChallengeRequest) { r.EkChain = make([][]byte, attest.MaxCertificates+1) }},
		"no EK":               {"tpm:ek", func(r *daemonv1.ChallengeRequest) { r.EkSpki = nil }},
		"an EK and more":      {"tpm:ek", func(r *daemonv1.ChallengeRequest) { r.EkSpki = append(bytes.Clone(r.GetEkSpki()), 0) }},
		"an unknown template": {"tpm:ek", func(r *daemonv1.ChallengeRequest) { r.EkTemplate = "H-5" }},
		"no template":         {"tpm:ek", func(r *daemonv1.ChallengeRequest) { r.EkTemplate = "" }},
		"another template": {"tpm:ek", func(r *daemonv1.ChallengeRequest) {
			r.EkTemplate = map[bool]string{true: "L-2", false: "L-1"}[r.GetEkTemplate() == "L-1"]
		}},
		"another curve":        {"tpm:ek", func(r *daemonv1.ChallengeRequest) { r.EkSpki, r.EkTemplate = spkiOn(t, elliptic.P384()), "L-2" }},
		"no AK":                {"tpm:key-attestation-ak", ak(func([]byte) []byte { return nil })},
		"an AK and more":       {"tpm:key-attestation-ak", ak(func(b []byte) []byte { return append(b, 0) })},
		"an AK of other bytes": {"tpm:key-attestation-ak", ak(func(b []byte) []byte { b[7] ^= 1; return b })}, // an attribute
		"the node's key as AK": {"tpm:key-attestation-ak", ak(func([]byte) []byte { return m.certify(m.nodeKey(), nil).GetNodePublic() })},
	} {
		t.Run(name, func(t *testing.T) {
			r := m.challengeRequest([]byte("csr"))
			c.change(r)
			slept := len(w.slept)
			before := len(eventsOf[events.JoinRefused](w, w.root))
			_, err := w.svc.Challenge(context.Background(), &joinv1.ChallengeRequest{Request: r})
			if got := wire(t, err); got != joinRefused {
				t.Errorf("answer %q", got)
			}
			if len(w.slept) != slept+1 {
				t.Error("not answered on the grid")
			}
			all := eventsOf[events.JoinRefused](w, w.root)
			if len(all) != before+1 || all[before].Reason != c.reason || all[before].Attestor != "tpm" || all[before].EKSHA256 != "" {
				t.Fatalf("events %+v, want %q", all[before:], c.reason)
			}
			digest := ""
			if len(r.GetCsrSha256()) == 32 {
				digest = hex.EncodeToString(r.GetCsrSha256())
			}
			if all[before].CSRSHA256 != digest {
				t.Errorf("csrSha256 %q, want %q", all[before].CSRSHA256, digest)
			}
		})
	}
	// Nothing at all is no crash.
	for _, in := range []*joinv1.ChallengeRequest{nil, {}} {
		if _, err := w.svc.Challenge(context.Background(), in); wire(t, err) != joinRefused {
			t.Errorf("answer %v", err)
		}
	}
}

// Without the attestor a challenge is refused as a join by it is.
func TestAChallengeWithoutTheAttestor(t *testing.T) {
	w, m := newWorld(t), newTPMMachine(t)
	if _, err := w.svc.Challenge(context.Background(), &joinv1.ChallengeRequest{Request: m.challengeRequest(nil)}); wire(t, err) != joinRefused {
		t.Errorf("answer %v", err)
	}
	if all := eventsOf[events.JoinRefused](w, w.root); len(all) != 1 || all[0].Reason != "join:attestor" {
		t.Errorf("events %+v", all)
	}
}

// Whether an EK is known is told to nobody who has not proved it: a challenge for any is answered.
func TestAChallengeDoesNotSayWhichTPMsAreKnown(t *testing.T) {
	w, known, unknown := newWorld(t, tpm()), newTPMMachine(t), newTPMMachine(t)
	w.allow(known)
	for _, m := range []*tpmMachine{known, unknown} {
		r := challenge(t, w.svc, m.challengeRequest([]byte("csr")))
		if len(r.GetState()) == 0 || len(r.GetCredentialBlob()) == 0 || len(r.GetEncryptedSecret()) == 0 {
			t.Errorf("challenge %v", r)
		}
	}
	if len(eventsOf[events.JoinRefused](w, w.root)) != 0 {
		t.Error("something is told")
	}
}

func spkiOn(t testing.TB, c elliptic.Curve) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(c, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	return der
}
