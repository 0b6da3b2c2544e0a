package helper

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"

	"github.com/better-compute/bcd/hwclaims"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/signing"
	"github.com/better-compute/bcd/tpmkey"
)

// Options say what a helper is for.
type Options struct {
	// Socket is the path of its socket. Its folder is made where it is missing.
	Socket string
	// UID and GID are the node's user and that user's group, who may connect beside root.
	UID, GID int
	// DataDir is the node's data directory.
	DataDir string
	// TPM makes and opens keys.
	TPM *tpmkey.Store
	// Hardware says where the firmware's claims are read.
	Hardware hwclaims.Options
	// Config is what [Client.Config] returns.
	Config string
	// Log hears who was turned away, and what failed.
	Log *slog.Logger
}

// Serve answers on the helper's socket until ctx ends, which is no error. ready is called once it listens.
func Serve(ctx context.Context, o Options, ready func()) error {
	l, err := listen(ctx, o)
	if err != nil {
		return err
	}
	s := newServer(o)
	g := newGate(l, func(uid uint32) bool { return uid == 0 || int64(uid) == int64(o.UID) }, o.Log)
	server := &http.Server{
		Handler: s.handler(), ConnContext: withEntry,
		ReadTimeout: requestWithin, WriteTimeout: callWithin + requestWithin, IdleTimeout: requestWithin,
		MaxHeaderBytes: 4 << 10, ErrorLog: slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	server.SetKeepAlivesEnabled(false) // each call has a connection of its own, so none holds a place for later
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		// What is being signed is let end: the node waits for it.
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestWithin)
		defer cancel()
		if server.Shutdown(grace) != nil {
			_ = server.Close()
		}
	}()
	ready()
	if err := server.Serve(g); !errors.Is(err, http.ErrServerClosed) {
		return fault.New(fault.Failed, "", "cannot serve the helper's socket: %w", err)
	}
	<-stopped
	return nil
}

// server answers the calls.
type server struct {
	Options
	keys *keyFiles
}

func newServer(o Options) *server {
	return &server{Options: o, keys: newKeyFiles(o)}
}

func (s *server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+pathSignTLS13, call(s, s.signTLS13))
	mux.HandleFunc("POST "+pathSignPurpose, call(s, s.signPurpose))
	mux.HandleFunc("POST "+pathSignCSR, call(s, s.signCSR))
	mux.HandleFunc("POST "+pathNewNextKey, call(s, s.newNextKey))
	mux.HandleFunc("POST "+pathCertifyNextKey, call(s, s.certifyNextKey))
	mux.HandleFunc("POST "+pathAttestationKey, call(s, s.attestationKey))
	mux.HandleFunc("POST "+pathFirmware, call(s, s.firmware))
	mux.HandleFunc("POST "+pathConfig, call(s, s.config))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeFailure(w, fault.New(fault.InvalidArgument, "install the same version of bcd for node and helper", "the helper has no call %.80q", r.Method+" "+r.URL.Path))
	})
	return mux
}

// call is the handler of one call.
func call[Request, Answer any](s *server, answer func(context.Context, Request) (Answer, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), callWithin)
		defer cancel()
		var request Request
		if err := decode(r.Body, &request); err != nil {
			writeFailure(w, fault.New(fault.InvalidArgument, "", "the request cannot be read: %w", err))
			return
		}
		working(ctx)
		a, err := answer(ctx, request)
		if err != nil {
			s.Log.WarnContext(ctx, "fail call of node", "call", r.URL.Path, "error", err, "hint", fault.HintOf(err))
			writeFailure(w, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(a) // a peer that is gone wants no answer
	}
}

func (s *server) signTLS13(ctx context.Context, r signRequest) (signAnswer, error) {
	if r.Purpose != "" || r.Payload != nil || !isTLS13(r.Message) {
		return signAnswer{}, fault.New(fault.InvalidArgument, "", "the message is none that a TLS 1.3 client signs")
	}
	key, err := s.keys.find(ctx, r.Key, allKeys)
	if err != nil {
		return signAnswer{}, err
	}
	sig, err := crypto.SignMessage(key, rand.Reader, r.Message, crypto.SHA256)
	return signAnswer{sig}, err
}

func (s *server) signPurpose(ctx context.Context, r signRequest) (signAnswer, error) {
	if r.Message != nil {
		return signAnswer{}, fault.New(fault.InvalidArgument, "", "a purpose has a payload and no message")
	}
	if err := checkPurpose(r.Purpose, r.Payload); err != nil {
		return signAnswer{}, err
	}
	key, err := s.keys.find(ctx, r.Key, allKeys)
	if err != nil {
		return signAnswer{}, err
	}
	sig, err := signing.Sign(key, r.Purpose, r.Payload)
	return signAnswer{sig}, err
}

// signCSR signs the request that a node makes for the key, which is the same for each key: an empty subject, no attributes. The
// helper makes it by itself and compares.
func (s *server) signCSR(ctx context.Context, r signRequest) (signAnswer, error) {
	if r.Purpose != "" || r.Payload != nil {
		return signAnswer{}, fault.New(fault.InvalidArgument, "", "a certificate request has a message and no payload")
	}
	key, err := s.keys.find(ctx, r.Key, nextKeys)
	if err != nil {
		return signAnswer{}, err
	}
	exact := &exactSigner{Signer: key, want: r.Message}
	_, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{SignatureAlgorithm: x509.ECDSAWithSHA256}, exact)
	return signAnswer{exact.signature}, err
}

// exactSigner signs one message alone, and remembers the signature.
type exactSigner struct {
	crypto.Signer
	want      []byte
	signature []byte
}

// SignMessage implements [crypto.MessageSigner].
func (e *exactSigner) SignMessage(random io.Reader, message []byte, opts crypto.SignerOpts) (sig []byte, err error) {
	if !bytes.Equal(message, e.want) {
		return nil, fault.New(fault.InvalidArgument, "", "the message is not the certificate request of the key")
	}
	e.signature, err = crypto.SignMessage(e.Signer, random, message, opts)
	return e.signature, err
}

func (s *server) newNextKey(ctx context.Context, _ nothing) (newKeyAnswer, error) {
	record, err := s.keys.make(ctx)
	return newKeyAnswer{record}, err
}

func (s *server) certifyNextKey(ctx context.Context, r certifyRequest) (certifyAnswer, error) {
	if len(r.CSRSHA256) != sha256.Size {
		return certifyAnswer{}, fault.New(fault.InvalidArgument, "", "the hash of the certificate request has %d bytes, not %d", len(r.CSRSHA256), sha256.Size)
	}
	key, err := s.keys.find(ctx, r.Key, nextKeys)
	if err != nil {
		return certifyAnswer{}, err
	}
	c, err := s.TPM.Attester().Certify(ctx, key, [sha256.Size]byte(r.CSRSHA256))
	return certifyAnswer{c}, err
}

func (s *server) attestationKey(ctx context.Context, _ nothing) (attestationKeyAnswer, error) {
	public, err := s.TPM.Attester().AKPublic(ctx)
	return attestationKeyAnswer{public}, err
}

func (s *server) firmware(ctx context.Context, _ nothing) (firmwareAnswer, error) {
	report, err := hwclaims.CollectFirmware(ctx, s.Hardware)
	return firmwareAnswer{report}, err
}

func (s *server) config(context.Context, nothing) (configAnswer, error) {
	return configAnswer{s.Config}, nil
}
