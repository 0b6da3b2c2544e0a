package joinservice_test

import (
	"testing"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	joinv1 "github.com/better-compute/bcd/api/join/v1"
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
