package tpmkeytest

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/google/go-tpm/tpm2"

	"github.com/better-compute/bcd/tpmkey/tpmkeytest/internal/wire"
)

// relay stands between clients and a TPM. Like the software TPMs behind it, it serves one client at a time.
type relay struct {
	path string

	mu       sync.Mutex // of what follows
	tpm      net.Conn   // its closing ends swtpm
	listener net.Listener
	client   net.Conn
	seen     []tpm2.TPMCC
	decide   func(tpm2.TPMCC) Action
	serving  sync.WaitGroup
}

func newRelay(path, tpm string) (*relay, error) {
	conn, err := dialTPM(tpm)
	if err != nil {
		return nil, err
	}
	r := &relay{path: path, tpm: conn}
	return r, r.listen()
}

// dialTPM connects to a TPM that has made its socket, and perhaps does not listen on it yet.
func dialTPM(path string) (conn net.Conn, err error) {
	for deadline := time.Now().Add(startLimit); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		conn, err = net.Dial("unix", path)
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return conn, err
		}
	}
	return nil, err
}

func (r *relay) listen() error {
	listener, err := net.Listen("unix", r.path)
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.listener = listener
	r.mu.Unlock()
	r.serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			r.serve(conn)
			_ = conn.Close()
		}
	})
	return nil
}

// unlisten sends clients away and waits until none is served.
func (r *relay) unlisten() {
	r.mu.Lock()
	if r.listener != nil {
		_ = r.listener.Close()
		if err := os.Remove(r.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			panic(err) // the test's own folder
		}
		r.listener = nil
	}
	if r.client != nil {
		_ = r.client.Close()
	}
	r.mu.Unlock()
	r.serving.Wait()
}

func (r *relay) close() {
	r.unlisten()
	_ = r.tpm.Close()
}

func (r *relay) reconnect(tpm string) error {
	conn, err := dialTPM(tpm)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.tpm.Close()
	r.tpm = conn
	return nil
}

func (r *relay) serve(client net.Conn) {
	r.mu.Lock()
	r.client = client
	gone := r.listener == nil
	r.mu.Unlock()
	for !gone {
		command, err := wire.Read(client)
		if err != nil {
			return
		}
		var response []byte
		switch action := r.judge(tpm2.TPMCC(wire.Code(command))); action.kind {
		case fail:
			response = wire.Result(uint32(action.code))
		case hangUp:
			return
		case ignore:
			continue
		default:
			if response, err = r.exchange(command); err != nil {
				return
			}
			if action.alter != nil {
				action.alter(response)
			}
		}
		if _, err := client.Write(response); err != nil {
			return
		}
	}
}

func (r *relay) judge(command tpm2.TPMCC) Action {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, command)
	if r.decide == nil {
		return Pass()
	}
	return r.decide(command)
}

// exchange gives one command to the TPM.
func (r *relay) exchange(command []byte) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := r.tpm.Write(command); err != nil {
		return nil, err
	}
	return wire.Read(r.tpm)
}

func (r *relay) takeCommands() []tpm2.TPMCC {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := r.seen
	r.seen = nil
	return seen
}

func (r *relay) intercept(decide func(tpm2.TPMCC) Action) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.decide = decide
}
