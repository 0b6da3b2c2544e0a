package e2e_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
)

// connectProxy is an HTTP proxy that knows one name, as in a network where only the proxy resolves names. It records
// what it is asked to connect to.
type connectProxy struct {
	address string

	mu    sync.Mutex
	asked []string
}

func startProxy(t *testing.T, knows map[string]string) *connectProxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	p := &connectProxy{address: l.Addr().String()}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go p.serve(c, knows)
		}
	}()
	return p
}

func (p *connectProxy) serve(c net.Conn, knows map[string]string) {
	defer c.Close()
	req, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil {
		return
	}
	p.mu.Lock()
	p.asked = append(p.asked, req.Method+" "+req.Host)
	p.mu.Unlock()
	to, known := knows[req.Host]
	if !known {
		_, _ = io.WriteString(c, "HTTP/1.1 502 Bad Gateway\r\n\r\n")
		return
	}
	up, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer up.Close()
	_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
	go func() { _, _ = io.Copy(up, c) }()
	_, _ = io.Copy(c, up)
}

func (p *connectProxy) requests() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.asked...)
}

// The gateway is reached through HTTPS_PROXY, which resolves its name; NO_PROXY goes past it.
func TestProxy(t *testing.T) {
	t.Parallel()
	p := startPlane(t, build(t, "./cmd/better-compute"), environment())
	gateway := regexp.MustCompile(`gateway_url = 'https://([^']+)'`)
	config := p.read("bcd/config.toml")
	found := gateway.FindStringSubmatch(config)
	if found == nil {
		t.Fatalf("no gateway in the configuration:\n%s", config)
	}
	const name = "gateway.known-to-the-proxy.invalid"
	proxy := startProxy(t, map[string]string{name + ":443": found[1]})

	m := newMachine(t, p, build(t, "./cmd/bcd"), keyInFile)
	path := filepath.Join(m.dir, "config.toml")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	m.write("config.toml", gateway.ReplaceAllString(string(text), "gateway_url = 'https://"+name+"'\ngateway_server_name = '127.0.0.1'"))

	m.env = environment("HTTPS_PROXY=http://"+proxy.address, "NO_PROXY="+name)
	if _, stderr := m.run(75, "join", "--timeout", "1ms", "--token-file", p.token("past")); len(proxy.requests()) != 0 {
		t.Errorf("NO_PROXY is not honoured: %q\n%s", proxy.requests(), stderr)
	}
	m.env = environment("HTTPS_PROXY=http://"+proxy.address, "NO_PROXY=")
	m.join(p.token("through"))
	daemon := m.node()
	daemon.waitFor(`msg="open session"`, 1)
	daemon.stop()
	asked := proxy.requests()
	if len(asked) < 2 {
		t.Errorf("the proxy was asked %q", asked)
	}
	for _, r := range asked {
		if r != "CONNECT "+name+":443" {
			t.Errorf("the proxy was asked %q", r)
		}
	}
}
