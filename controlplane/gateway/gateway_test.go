package gateway_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	joinv1 "github.com/better-compute/bcd/api/join/v1"
	"github.com/better-compute/bcd/controlplane/gateway"
	"github.com/better-compute/bcd/controlplane/pki"
	"github.com/better-compute/bcd/internal/fault"
)

// refusal is the answer of a JoinService that refuses.
func refusal(t *testing.T, c codes.Code, reason fault.Code) error {
	t.Helper()
	s, err := status.New(c, "Join refused").WithDetails(&errdetails.ErrorInfo{Reason: string(reason), Domain: "better-compute"})
	if err != nil {
		t.Fatal(err)
	}
	return s.Err()
}

func reasonOf(err error) fault.Code {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return fault.Code(info.GetReason())
		}
	}
	return ""
}

// Req: JF-019 RN-009
func TestRelayAddsThePeerAndChangesNothing(t *testing.T) {
	r := newRig(t, func(o *gateway.Options) { o.Sites = []string{"site_1", "site_2"} })
	ctx := t.Context()

	// A field of a later version passes too.
	join := &daemonv1.JoinRequest{Body: []byte{0, 1, 0xff}, Sig: []byte("sig")}
	join.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, 99, protowire.BytesType), "later"))
	joined, err := r.client(t, nil).Join(ctx, join)
	if err != nil {
		t.Fatal(err)
	}
	if string(joined.GetBody()) != "admission" || string(joined.GetSig().GetSignature()) != "by J" {
		t.Errorf("answer %v is not JoinService's", joined)
	}
	if _, err := r.client(t, nil).Challenge(ctx, &daemonv1.ChallengeRequest{AkPublic: []byte("ak")}); err != nil {
		t.Fatal(err)
	}
	node := nodeCertificate(t, r.bundle, now)
	renew := &daemonv1.RenewRequest{Csr: []byte("csr"), PopSig: []byte("pop"), ClientTimeUnixMs: -7}
	if _, err := r.client(t, node).Renew(ctx, renew); err != nil {
		t.Fatal(err)
	}

	anonymous := &joinv1.Peer{Address: "127.0.0.1", GatewaySites: []string{"site_1", "site_2"}}
	known := proto.CloneOf(anonymous)
	known.Certificate = node.Leaf.Raw
	if d := cmp.Diff(&joinv1.JoinRequest{Peer: anonymous, Request: join}, r.joinService.join[0], protocmp.Transform()); d != "" {
		t.Errorf("join: (-want +got)\n%s", d)
	}
	want := &joinv1.ChallengeRequest{Peer: anonymous, Request: &daemonv1.ChallengeRequest{AkPublic: []byte("ak")}}
	if d := cmp.Diff(want, r.joinService.challenge[0], protocmp.Transform()); d != "" {
		t.Errorf("challenge: (-want +got)\n%s", d)
	}
	if d := cmp.Diff(&joinv1.RenewRequest{Peer: known, Request: renew}, r.joinService.renew[0], protocmp.Transform()); d != "" {
		t.Errorf("renew: (-want +got)\n%s", d)
	}
}

// Req: RN-045
func TestRenewAndSessionNeedAClientCertificate(t *testing.T) {
	r := newRig(t, nil)
	c := r.client(t, nil)
	_, err := c.Renew(t.Context(), &daemonv1.RenewRequest{})
	if status.Code(err) != codes.Unauthenticated || reasonOf(err) != fault.Unauthenticated {
		t.Errorf("Renew: %v, want UNAUTHENTICATED", err)
	}
	s, err := c.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err = s.Recv(); status.Code(err) != codes.Unauthenticated {
		t.Errorf("Session: %v, want UNAUTHENTICATED", err)
	}
	if len(r.joinService.renew)+len(r.joinService.session) > 0 {
		t.Error("JoinService was asked")
	}
}

// What a client certificate is worth is said by a TLS alert, before any method.
func TestClientCertificatesAreVerifiedInTheHandshake(t *testing.T) {
	r := newRig(t, nil)
	other, err := pki.New("compute.example.com", now)
	if err != nil {
		t.Fatal(err)
	}
	serving, err := r.bundle.IssueGateway([]string{host}, now)
	if err != nil {
		t.Fatal(err)
	}
	server := serving.TLS()
	for name, c := range map[string]struct {
		certificate *tls.Certificate
		alert       string
	}{
		"good":         {nodeCertificate(t, r.bundle, now), ""},
		"none":         {nil, ""},
		"expired":      {nodeCertificate(t, r.bundle, now.Add(-25*time.Hour)), "expired certificate"},
		"not yet":      {nodeCertificate(t, r.bundle, now.Add(time.Hour)), "expired certificate"},
		"foreign":      {nodeCertificate(t, other, now), "unknown certificate authority"},
		"not a node's": {&server, "unknown certificate authority"},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := tls.Dial("tcp", r.addr, r.tlsConfig(c.certificate))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
			_, err = conn.Read(make([]byte, 1)) // the server's HTTP/2 settings, or the alert
			switch {
			case c.alert == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.alert != "" && (err == nil || !strings.Contains(err.Error(), c.alert)):
				t.Errorf("error %v, want the alert %q", err, c.alert)
			}
		})
	}
}

// A client that has sent its request before the server looked at its certificate still reads the alert.
func TestTheAlertIsNotLost(t *testing.T) {
	r := newRig(t, nil)
	expired := nodeCertificate(t, r.bundle, now.Add(-25*time.Hour))
	for range 50 {
		conn, err := tls.Dial("tcp", r.addr, r.tlsConfig(expired))
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if _, err := conn.Write(make([]byte, 1000)); err != nil {
				t.Fatalf("write: %v", err)
			}
		}
		if _, err = conn.Read(make([]byte, 1)); err == nil || !strings.Contains(err.Error(), "expired certificate") {
			t.Fatalf("error %v, want the alert", err)
		}
		_ = conn.Close()
	}
}

func TestServerTimeIsOnEveryResponse(t *testing.T) {
	r := newRig(t, nil)
	check := func(name string, h metadata.MD) {
		t.Helper()
		if got := h.Get(gateway.ServerTimeHeader); len(got) != 1 || got[0] != strconv.FormatInt(now.UnixMilli(), 10) {
			t.Errorf("%s: %q, want the clock in Unix milliseconds", name, got)
		}
	}
	conn := r.dial(t, nil)
	c := daemonv1.NewNodeGatewayClient(conn)
	var h metadata.MD
	if _, err := c.Join(t.Context(), &daemonv1.JoinRequest{}, grpc.Header(&h)); err != nil {
		t.Fatal(err)
	}
	check("answer", h)

	h = nil
	if _, err := c.Renew(t.Context(), &daemonv1.RenewRequest{}, grpc.Header(&h)); err == nil {
		t.Fatal("no error")
	}
	check("refusal", h)

	h = nil
	err := conn.Invoke(t.Context(), "/x.Y/Z", &daemonv1.JoinRequest{}, &daemonv1.JoinResponse{}, grpc.Header(&h))
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("unknown method: %v", err)
	}
	check("unknown method", h)

	s, err := c.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, _ = s.Recv()
	if h, err = s.Header(); err != nil {
		t.Fatal(err)
	}
	check("session", h)
}

func TestJoinServicesErrorsPassAsTheyAre(t *testing.T) {
	r := newRig(t, nil)
	c := r.client(t, nil)
	for code, reason := range map[codes.Code]fault.Code{
		codes.PermissionDenied: fault.AccessDenied, codes.Aborted: fault.Conflict, codes.FailedPrecondition: fault.InvalidConfig,
	} {
		want := refusal(t, code, reason)
		r.joinService.answer(want)
		_, err := c.Join(t.Context(), &daemonv1.JoinRequest{})
		if !proto.Equal(status.Convert(err).Proto(), status.Convert(want).Proto()) {
			t.Errorf("%v, want %v", err, want)
		}
	}
}

// A daemon learns nothing of what is behind the gateway.
func TestTheInnerConnectionStaysInside(t *testing.T) {
	r := newRig(t, nil)
	c := r.client(t, nil)
	r.joinService.answer(status.Error(codes.Unknown, "pq: relation node_certs does not exist"))
	_, err := c.Join(t.Context(), &daemonv1.JoinRequest{})
	if status.Code(err) != codes.Internal || strings.Contains(err.Error(), "node_certs") {
		t.Errorf("inner error: %v", err)
	}

	r.internal.Stop()
	_, err = c.Join(t.Context(), &daemonv1.JoinRequest{})
	if status.Code(err) != codes.Unavailable || strings.Contains(err.Error(), "127.0.0.1") {
		t.Errorf("JoinService gone: %v, want UNAVAILABLE without an address", err)
	}
	if reasonOf(err) != "" {
		t.Error("a lost connection has a code of the control plane")
	}
}

func TestOnlyRefusedCallsAreLimited(t *testing.T) {
	at := now
	r := newRig(t, func(o *gateway.Options) {
		o.RefusedBurst, o.RefusedPerSecond, o.Now = 3, 1, func() time.Time { return at }
	})
	c := r.client(t, nil)
	join := func() error { _, err := c.Join(t.Context(), &daemonv1.JoinRequest{}); return err }

	for range 20 {
		if err := join(); err != nil {
			t.Fatalf("an admitted call: %v", err)
		}
	}
	r.joinService.answer(refusal(t, codes.Aborted, fault.Conflict))
	for range 20 {
		if err := join(); status.Code(err) != codes.Aborted {
			t.Fatalf("a conflict: %v", err)
		}
	}
	r.joinService.answer(refusal(t, codes.PermissionDenied, fault.AccessDenied))
	for i := range 3 {
		if err := join(); status.Code(err) != codes.PermissionDenied {
			t.Fatalf("refused call %d: %v", i, err)
		}
	}
	asked := len(r.joinService.join)
	err := join()
	if status.Code(err) != codes.ResourceExhausted || reasonOf(err) != fault.RateLimited {
		t.Fatalf("over the limit: %v, want RESOURCE_EXHAUSTED", err)
	}
	var wait time.Duration
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			wait = info.GetRetryDelay().AsDuration()
		}
	}
	if wait != time.Second {
		t.Errorf("RetryInfo says %v, want 1s", wait)
	}
	if len(r.joinService.join) != asked {
		t.Error("JoinService was asked over the limit")
	}
	at = at.Add(wait)
	r.joinService.answer(nil)
	if err := join(); err != nil {
		t.Errorf("after the wait: %v", err)
	}
}

func TestRequestsAreBounded(t *testing.T) {
	r := newRig(t, nil)
	c := r.client(t, nil)
	if _, err := c.Join(t.Context(), &daemonv1.JoinRequest{Body: make([]byte, 60<<10), Sig: make([]byte, 72)}); err != nil {
		t.Errorf("60 KiB: %v", err)
	}
	_, err := c.Join(t.Context(), &daemonv1.JoinRequest{Body: make([]byte, 64<<10)})
	if status.Code(err) != codes.InvalidArgument || reasonOf(err) != fault.TooLarge {
		t.Errorf("64 KiB: %v, want %s", err, fault.TooLarge)
	}
	if _, err := c.Join(t.Context(), &daemonv1.JoinRequest{Body: make([]byte, 2<<20)}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("2 MiB: %v", err)
	}
	if n := len(r.joinService.join); n != 1 {
		t.Errorf("JoinService was asked %d times, want once", n)
	}
}

// rawBytes sends what no protobuf message is.
type rawBytes struct{}

func (rawBytes) Marshal(v any) ([]byte, error) { return v.([]byte), nil }
func (rawBytes) Unmarshal([]byte, any) error   { return nil }
func (rawBytes) Name() string                  { return "proto" }

// A request that cannot be read is JoinService's to refuse, in the same bytes as any other, and is charged.
//
// Req: RF-001
func TestUnreadableRequestsAreRefusedLikeOthers(t *testing.T) {
	r := newRig(t, func(o *gateway.Options) { o.RefusedPerSecond, o.RefusedBurst = 1, 3 })
	want := refusal(t, codes.PermissionDenied, fault.AccessDenied)
	r.joinService.answer(want)
	conn := r.dial(t, nil)
	for i, raw := range [][]byte{{0xff}, {0x0a, 0x50, 1}, bytes.Repeat([]byte{0xff}, 1<<10), nil} {
		err := conn.Invoke(t.Context(), daemonv1.NodeGateway_Join_FullMethodName, raw, nil, grpc.ForceCodec(rawBytes{}))
		if i == 3 {
			if status.Code(err) != codes.ResourceExhausted {
				t.Errorf("after 3 refused calls: %v", err)
			}
			break
		}
		if diff := cmp.Diff(status.Convert(want).Proto(), status.Convert(err).Proto(), protocmp.Transform()); diff != "" {
			t.Errorf("%x (-want +got):\n%s", raw[:1], diff)
		}
		if got := r.joinService.join[i].GetRequest(); proto.Size(got) != 0 {
			t.Errorf("JoinService was asked %v, not the empty request", got)
		}
	}
}

// TLS 1.3, HTTP/2, no tickets; anything else on the port ends, and the next caller is served.
func TestOtherProtocolsOnThePort(t *testing.T) {
	r := newRig(t, func(o *gateway.Options) { o.HandshakeWithin = 300 * time.Millisecond })

	closed := func(name string, conn net.Conn) {
		t.Helper()
		defer conn.Close()
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the connection is still open", name)
		}
	}
	raw := func(data []byte) net.Conn {
		t.Helper()
		conn, err := net.Dial("tcp", r.addr)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write(data)
		return conn
	}
	closed("silence", raw(nil))
	closed("garbage", raw(bytes.Repeat([]byte{0xa5}, 1<<16)))
	closed("HTTP/1", raw([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")))
	closed("half a ClientHello", raw([]byte{0x16, 3, 1, 2, 0, 1}))

	for _, protos := range [][]string{{"http/1.1"}, nil} {
		http1 := r.tlsConfig(nil)
		http1.NextProtos = protos
		conn, err := tls.Dial("tcp", r.addr, http1)
		if err != nil {
			continue
		}
		_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		if resp, err := http.ReadResponse(bufio.NewReader(conn), nil); err == nil {
			t.Errorf("HTTP/1 over TLS with ALPN %q was answered: %s", protos, resp.Status)
		}
		closed("HTTP/1 over TLS", conn)
	}
	old := r.tlsConfig(nil)
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	if conn, err := tls.Dial("tcp", r.addr, old); err == nil {
		_ = conn.Close()
		t.Error("TLS 1.2 was negotiated")
	}
	quiet, err := tls.Dial("tcp", r.addr, r.tlsConfig(nil))
	if err != nil {
		t.Fatal(err)
	}
	closed("TLS without HTTP/2", quiet)

	tickets := r.tlsConfig(nil)
	cache := &countingCache{}
	tickets.ClientSessionCache = cache
	conn, err := tls.Dial("tcp", r.addr, tickets)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = conn.Read(make([]byte, 1))
	_ = conn.Close()
	if cache.put > 0 {
		t.Error("the gateway gave a session ticket")
	}

	if _, err := r.client(t, nil).Join(t.Context(), &daemonv1.JoinRequest{}); err != nil {
		t.Errorf("after all that: %v", err)
	}
}

type countingCache struct{ put int }

func (c *countingCache) Get(string) (*tls.ClientSessionState, bool) { return nil, false }
func (c *countingCache) Put(_ string, s *tls.ClientSessionState) {
	if s != nil {
		c.put++
	}
}

func TestSlowCallersAreCutOff(t *testing.T) {
	r := newRig(t, func(o *gateway.Options) { o.CallWithin = 200 * time.Millisecond })
	conn := r.dial(t, nil)
	s, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true}, daemonv1.NodeGateway_Join_FullMethodName)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	err = s.RecvMsg(&daemonv1.JoinResponse{}) // the request never comes
	if status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("error %v, want DEADLINE_EXCEEDED", err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("cut off after %v", took)
	}
}

func opened(notAfter time.Time) *joinv1.SessionEvent {
	return &joinv1.SessionEvent{Event: &joinv1.SessionEvent_Opened{Opened: &joinv1.SessionOpened{
		Welcome:        &daemonv1.Welcome{SessionId: "s1", Protocol: 1, HeartbeatIntervalSeconds: 25},
		NotAfterUnixMs: notAfter.UnixMilli(),
	}}}
}

func openSession(t *testing.T, r *rig) grpc.BidiStreamingClient[daemonv1.AgentFrame, daemonv1.GatewayFrame] {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(cancel)
	s, err := r.client(t, nodeCertificate(t, r.bundle, now)).Session(ctx)
	if err != nil {
		t.Fatal(err)
	}
	hello := &daemonv1.Hello{NodeId: "node_1", ProtocolMin: 1, ProtocolMax: 1, BootId: "b"}
	if err := s.Send(&daemonv1.AgentFrame{Frame: &daemonv1.AgentFrame_Hello{Hello: hello}}); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSessionFollowsJoinService(t *testing.T) {
	r := newRig(t, nil)
	s := openSession(t, r)
	r.joinService.events <- opened(now.Add(time.Hour))
	f, err := s.Recv()
	if err != nil || f.GetWelcome().GetSessionId() != "s1" {
		t.Fatalf("first frame %v (%v), want Welcome", f, err)
	}
	asked := r.joinService.session[0]
	if asked.GetHello().GetNodeId() != "node_1" || asked.GetGateway() != "gw-1" || len(asked.GetPeer().GetCertificate()) == 0 {
		t.Errorf("JoinService was asked %v", asked)
	}
	r.joinService.events <- &joinv1.SessionEvent{Event: &joinv1.SessionEvent_Ended{
		Ended: &joinv1.SessionEnded{Goodbye: &daemonv1.Goodbye{Reason: "certificate-revoked", ReconnectAfterSeconds: 9}},
	}}
	f, err = s.Recv()
	if err != nil || f.GetGoodbye().GetReason() != "certificate-revoked" || f.GetGoodbye().GetReconnectAfterSeconds() != 9 {
		t.Errorf("frame %v (%v), want the goodbye", f, err)
	}
	if _, err := s.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("after the goodbye: %v, want the end", err)
	}
}

func TestRefusedSessionPassesAsItIs(t *testing.T) {
	r := newRig(t, nil)
	r.joinService.answer(refusal(t, codes.PermissionDenied, fault.AccessDenied))
	s := openSession(t, r)
	if _, err := s.Recv(); status.Code(err) != codes.PermissionDenied || reasonOf(err) != fault.AccessDenied {
		t.Errorf("%v, want the refusal", err)
	}
}

func TestFirstFrameMustBeHello(t *testing.T) {
	r := newRig(t, nil)
	s, err := r.client(t, nodeCertificate(t, r.bundle, now)).Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(heartbeat()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("%v, want INVALID_ARGUMENT", err)
	}
	if len(r.joinService.session) > 0 {
		t.Error("JoinService was asked")
	}
}

func TestShutdownDrains(t *testing.T) {
	r := newRig(t, nil)
	s := openSession(t, r)
	r.joinService.events <- opened(now.Add(time.Hour))
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := r.stop(); err != nil {
		t.Errorf("Serve: %v", err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("stopped after %v", took)
	}
	f, err := s.Recv()
	if err != nil || f.GetGoodbye().GetReason() != "draining" {
		t.Errorf("frame %v (%v), want goodbye: draining", f, err)
	}
	if conn, err := net.Dial("tcp", r.addr); err == nil {
		_ = conn.Close()
		t.Error("the port is still open")
	}
}

func TestServeEndsThoughItNeverBegan(t *testing.T) {
	for range 20 { // either may be first
		if err := newRig(t, nil).stop(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	if _, err := gateway.New(gateway.Options{}); err == nil {
		t.Error("a gateway without keys was made")
	}
}
