package peercred_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/better-compute/bcd/internal/peercred"
)

func TestUID(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	there, err := (&net.Dialer{}).DialContext(t.Context(), "unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	here, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	for name, conn := range map[string]net.Conn{"who connected": here, "who listened": there} {
		if uid, err := peercred.UID(conn); err != nil || int(uid) != os.Geteuid() {
			t.Errorf("%s is %d, %v", name, uid, err)
		}
	}
	if err := here.Close(); err != nil {
		t.Fatal(err)
	}
	if uid, err := peercred.UID(here); err == nil {
		t.Errorf("of a closed connection it is %d", uid)
	}
	pipe, _ := net.Pipe()
	defer pipe.Close()
	if uid, err := peercred.UID(pipe); err == nil {
		t.Errorf("of a pipe it is %d", uid)
	}
}
