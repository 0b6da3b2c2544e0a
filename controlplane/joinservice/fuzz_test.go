package joinservice_test

import (
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	joinv1 "github.com/better-compute/bcd/api/join/v1"
	"github.com/better-compute/bcd/controlplane/joinservice"
	"github.com/better-compute/bcd/hwclaims"
)

// Whatever a caller sends is refused in the same words, unless it is the signed request of a machine with a good token.
func FuzzJoin(f *testing.F) {
	w := newWorld(f)
	tok := w.token()
	good := w.request(newMachine(f), tok).GetRequest()
	f.Add(good.GetBody(), good.GetSig())
	f.Add([]byte{}, []byte{})
	f.Add(good.GetBody()[:40], good.GetSig())
	f.Fuzz(func(t *testing.T, body, sig []byte) {
		_, err := w.svc.Join(t.Context(), &joinv1.JoinRequest{Request: &daemonv1.JoinRequest{Body: body, Sig: sig}})
		if err != nil && wire(t, err) != joinRefused {
			t.Errorf("answer %v", err)
		}
		if err == nil && string(body) != string(good.GetBody()) {
			t.Error("another request was admitted")
		}
	})
}

func FuzzRenew(f *testing.F) {
	w := newWorld(f)
	m := w.member()
	good, _ := w.renewal(m, newKey(f))
	r := good.GetRequest()
	f.Add(r.GetCsr(), r.GetChain()[0], r.GetClientTimeUnixMs(), r.GetPopSig(), m.leaf)
	f.Add([]byte{}, m.leaf, int64(-1<<63), []byte{}, []byte{})
	f.Fuzz(func(t *testing.T, csr, leaf []byte, at int64, sig, peer []byte) {
		_, err := w.svc.Renew(t.Context(), &joinv1.RenewRequest{
			Peer: &joinv1.Peer{Certificate: peer},
			Request: &daemonv1.RenewRequest{
				Csr: csr, Chain: [][]byte{leaf}, ClientTimeUnixMs: at, PopSig: sig,
			},
		})
		if err != nil && wire(t, err) != renewRefused {
			t.Errorf("answer %v", err)
		}
		if err == nil && string(csr) != string(r.GetCsr()) {
			t.Error("another request was admitted")
		}
	})
}

// Whatever evidence a machine signs, it is refused in the same words, unless it is the right one.
func FuzzEvidence(f *testing.F) {
	w := newWorld(f, discovery(joinservice.ApproveAlways), x509pop)
	m, node := newMachine(f), w.member()
	tok := w.discoveryToken(m)
	add := func(attestor string, request *joinv1.JoinRequest) {
		var body daemonv1.JoinRequestBody
		if err := proto.Unmarshal(request.GetRequest().GetBody(), &body); err != nil {
			f.Fatal(err)
		}
		evidence, err := proto.Marshal(body.GetEvidence())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(attestor, evidence)
	}
	add("discovery", w.request(m, tok, booted(m)))
	add("x509pop", w.rejoin(node, m.key))
	mac := m.claims.GetMacs()[0]
	f.Fuzz(func(t *testing.T, attestor string, evidence []byte) {
		var e daemonv1.Evidence
		if proto.Unmarshal(evidence, &e) != nil || !utf8.ValidString(attestor) {
			t.Skip()
		}
		w.t = t
		req := w.request(m, tok, func(c *call) { c.body.Attestor, c.body.Role, c.body.Evidence = attestor, "ramdisk", &e })
		resp, err := w.svc.Join(t.Context(), req)
		if err != nil {
			if wire(t, err) != joinRefused {
				t.Errorf("answer %v", err)
			}
			return
		}
		booted, _ := hwclaims.NormalizeMAC(e.GetDiscovery().GetBootMac())
		if w.openBody(req, resp).GetDeferral() == nil || attestor != "discovery" || booted != mac {
			t.Errorf("%s was admitted with %v", attestor, &e)
		}
	})
}
