package config

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/pin"
)

// Limits of what a configuration may say.
const (
	maxSocketPath   = 107  // sun_path without its NUL
	maxName         = 253  // a DNS name
	maxLabel        = 63   // one label of it
	maxID           = 64   // an id such as a site's
	maxPlaceholders = 1024 // far more than a fleet has
	maxPlaceholder  = 256  // a hardware value, in bytes
)

// into checks each key and puts it into c, which holds the defaults.
func (f *file) into(c *Config) error {
	for _, step := range []func(*Config) error{f.gateway, f.site, f.pins, f.paths, f.tpm, f.helper, f.log, f.sockets, f.hardware} {
		if err := step(c); err != nil {
			return err
		}
	}
	return nil
}

// check reports a value that is wrong, at the place of its key.
func (f *file) check(key string, err error) error {
	if err == nil {
		return nil
	}
	return f.positions.at(key, fault.HintOf(err), "%s: %s", key, err)
}

// missing reports a key that must be there.
func missing(key string) error {
	return fault.New(fault.Config, "add the line; "+hintSource, "%s is missing", key)
}

func invalid(hint, format string, args ...any) error {
	return fault.New(fault.Config, hint, format, args...)
}

func (f *file) gateway(c *Config) error {
	if f.GatewayURL == nil {
		return missing("gateway_url")
	}
	g, err := ParseGatewayURL(*f.GatewayURL)
	if err != nil {
		return f.check("gateway_url", err)
	}
	if f.GatewayServerName != nil {
		if !isHost(*f.GatewayServerName) {
			return f.check("gateway_server_name",
				invalid("write the name that the gateway's certificate holds, such as gw.example.com", "%q is not a host name", *f.GatewayServerName))
		}
		g.ServerName = *f.GatewayServerName
	}
	c.Gateway = g
	return nil
}

// ParseGatewayURL reads a gateway's URL: https, a host, and nothing else but a port.
func ParseGatewayURL(s string) (Gateway, error) {
	const hint = "write it as https://gw.example.com or https://gw.example.com:8443"
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Host == "" && u.Scheme == "":
		return Gateway{}, invalid(hint, "%q is not a URL", s)
	case u.Scheme != "https":
		return Gateway{}, invalid(hint, "%q does not start with https://", s)
	case u.User != nil:
		return Gateway{}, invalid(hint, "a gateway's URL has no user and no password") // not repeated: it may be a secret
	case u.Path != "" && u.Path != "/", u.RawQuery != "", u.ForceQuery, u.Fragment != "", strings.HasSuffix(s, "#"), u.Opaque != "":
		return Gateway{}, invalid(hint, "%q has more than a host and a port", s)
	case !isHost(u.Hostname()):
		return Gateway{}, invalid(hint, "%q names no host", s)
	}
	port := u.Port()
	switch {
	case port == "" && strings.HasSuffix(u.Host, ":"):
		return Gateway{}, invalid(hint, "%q has an empty port", s)
	case port == "":
		port = "443"
	case !isPort(port):
		return Gateway{}, invalid(hint, "%q has no port between 1 and 65535", s)
	}
	return Gateway{URL: s, Address: net.JoinHostPort(u.Hostname(), port), ServerName: u.Hostname()}, nil
}

func isPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0 && s == strconv.FormatUint(n, 10)
}

// isHost accepts a DNS name of letters, digits and hyphens, or an IP address without a zone.
func isHost(s string) bool {
	if addr, err := netip.ParseAddr(s); err == nil {
		return addr.Zone() == ""
	}
	if s == "" || len(s) > maxName {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > maxLabel || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for _, c := range []byte(label) {
			if c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
				return false
			}
		}
	}
	// A name whose last label is a number would be read as an address, see RFC 3986 section 7.4.
	last := s[strings.LastIndexByte(s, '.')+1:]
	return strings.Trim(last, "0123456789") != ""
}

func (f *file) site(c *Config) error {
	if f.Site == nil {
		return missing("site")
	}
	id, ok := strings.CutPrefix(*f.Site, "site_")
	if !ok || id == "" || len(*f.Site) > maxID || strings.Trim(id, "0123456789abcdefghijklmnopqrstuvwxyz") != "" {
		return f.check("site", invalid(`write the site's id, "site_" and its digits and lower-case letters`, "%q is not a site's id", *f.Site))
	}
	c.Site = *f.Site
	return nil
}

func (f *file) pins(c *Config) error {
	for _, p := range []struct {
		key   string
		value any
		set   *pin.Set
	}{
		{"serving_ca_spki_pin", f.ServingCAPin, &c.ServingCA},
		{"join_signing_key_pin", f.JoinSigningPin, &c.JoinSigning},
		{"join_encryption_key_pin", f.JoinEncryptionPin, &c.JoinEncryption},
	} {
		if p.value == nil {
			return missing(p.key)
		}
		set, err := parsePins(p.value)
		if err != nil {
			return f.check(p.key, err)
		}
		*p.set = set
	}
	return nil
}

// parsePins reads a pin, or a list of one to three.
func parsePins(value any) (pin.Set, error) {
	list, ok := value.([]any)
	if !ok {
		list = []any{value}
	}
	if len(list) == 0 || len(list) > pin.MaxSet {
		return nil, invalid(fmt.Sprintf("write one pin, or a list of at most %d", pin.MaxSet), "a list of %d pins", len(list))
	}
	var set pin.Set
	for _, v := range list {
		s, ok := v.(string)
		if !ok {
			return nil, invalid(`write it in quotes, "sha256/…"`, "%v is not a pin", v)
		}
		p, err := pin.Parse(s)
		if err != nil {
			return nil, err
		}
		set = set.With(p)
	}
	return set, nil
}

func (f *file) paths(c *Config) error {
	for _, p := range []struct {
		key  string
		from *string
		to   *string
	}{
		{"data_dir", f.DataDir, &c.DataDir},
		{"host_root", f.HostRoot, &c.HostRoot},
		{"tpm.endorsement_auth_file", f.TPM.EndorsementAuthFile, &c.TPM.EndorsementAuthFile},
		{"tpm.owner_auth_file", f.TPM.OwnerAuthFile, &c.TPM.OwnerAuthFile},
	} {
		if p.from == nil {
			continue
		}
		path, err := absolute(*p.from)
		if err != nil {
			return f.check(p.key, err)
		}
		*p.to = path
	}
	return nil
}

func absolute(s string) (string, error) {
	if !filepath.IsAbs(s) || strings.ContainsRune(s, 0) {
		return "", invalid("write a path that starts with /", "%q is not an absolute path", s)
	}
	return filepath.Clean(s), nil
}

// socket reads the path of a Unix socket.
func socket(s string) (string, error) {
	path, err := absolute(s)
	if err != nil {
		return "", err
	}
	if len(path) > maxSocketPath {
		return "", invalid(fmt.Sprintf("use a path of at most %d bytes", maxSocketPath), "the path of the socket %q is too long for the kernel", s)
	}
	return path, nil
}

func (f *file) tpm(c *Config) error {
	t := f.TPM
	c.TPM.AutoRejoin = t.AutoRejoin
	if t.Mode != nil {
		switch m := TPMMode(*t.Mode); m {
		case TPMAuto, TPMRequired, TPMOff:
			c.TPM.Mode = m
		default:
			return f.check("tpm.mode", invalid("write auto, required or off", "%q is not a TPM mode", *t.Mode))
		}
	}
	if t.Device != nil {
		device, err := parseDevice(*t.Device)
		if err != nil {
			return f.check("tpm.device", err)
		}
		c.TPM.Device = device
	}
	if t.EK != nil {
		// NV indices that the TCG reserves for endorsement keys and their certificates (EK Credential Profile 2.5, section 2.2.1).
		const first, last = 0x01c00000, 0x01c07fff
		n, err := strconv.ParseUint(strings.TrimPrefix(*t.EK, "0x"), 16, 32)
		if err != nil || !strings.HasPrefix(*t.EK, "0x") || n < first || n > last {
			return f.check("tpm.ek", invalid("write the NV index of the key's certificate, such as 0x01c00002 (RSA 2048) or 0x01c0000a (ECC P-256)",
				"%q is not an endorsement key's NV index", *t.EK))
		}
		c.TPM.EK = uint32(n)
	}
	return nil
}

func parseDevice(s string) (string, error) {
	const network = "unix:"
	if path, ok := strings.CutPrefix(s, network); ok {
		path, err := socket(path)
		return network + path, err
	}
	path, err := absolute(s)
	if err != nil {
		return "", invalid("write /dev/tpmrm0, or unix: and the absolute path of a software TPM's socket", "%q is not a TPM device", s)
	}
	return path, nil
}

func (f *file) helper(c *Config) error {
	if u := f.Helper.User; u != nil {
		// The names that useradd accepts; a number would leave open whose it is.
		if *u == "" || len(*u) > 32 || strings.Trim(*u, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.$") != "" ||
			strings.Trim(*u, "0123456789") == "" || (*u)[0] == '-' || *u == "root" {
			return f.check("helper.user", invalid("write the name of a user other than root, such as bcd", "%q cannot be the node's user", *u))
		}
		c.Helper.User = *u
	}
	if s := f.Helper.Socket; s != nil {
		if f.Helper.User == nil {
			return f.check("helper.socket", invalid("add user, the node's user", "[helper] has a socket and no user"))
		}
		path, err := socket(*s)
		if err != nil {
			return f.check("helper.socket", err)
		}
		c.Helper.Socket = path
	}
	return nil
}

func (f *file) log(c *Config) error {
	if s := f.Log.Level; s != nil {
		level, err := parseLevel(*s)
		if err != nil {
			return f.check("log.level", err)
		}
		c.Log.Level = level
	}
	if s := f.Log.Format; s != nil {
		json, err := parseFormat(*s)
		if err != nil {
			return f.check("log.format", err)
		}
		c.Log.JSON = json
	}
	return nil
}

func parseLevel(s string) (slog.Level, error) {
	switch s {
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, invalid("write debug, info, warn or error", "%q is not a log level", s)
}

func parseFormat(s string) (json bool, err error) {
	switch s {
	case "text":
		return false, nil
	case "json":
		return true, nil
	}
	return false, invalid("write text or json", "%q is not a log format", s)
}

func (f *file) sockets(c *Config) error {
	if s := f.Status.Socket; s != nil {
		path, err := socket(*s)
		if err != nil {
			return f.check("status.socket", err)
		}
		c.Status.Socket = path
	}
	if s := f.Metrics.Listen; s != nil {
		m, err := parseListen(*s)
		if err != nil {
			return f.check("metrics.listen", err)
		}
		c.Metrics = m
	}
	return nil
}

// parseListen reads where metrics are served. They say much about a machine and have no password: this machine only.
func parseListen(s string) (Metrics, error) {
	const hint = "write 127.0.0.1:9464, [::1]:9464, or unix: and an absolute path"
	if path, ok := strings.CutPrefix(s, "unix:"); ok {
		path, err := socket(path)
		return Metrics{Network: "unix", Address: path}, err
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil || !isPort(port) {
		return Metrics{}, invalid(hint, "%q is not an address and a port", s)
	}
	// "localhost" is whatever a file says that it is; an address is not.
	addr, err := netip.ParseAddr(host)
	if err != nil || !addr.IsLoopback() {
		return Metrics{}, invalid(hint, "%q is not on the loopback", s)
	}
	return Metrics{Network: "tcp", Address: s}, nil
}

func (f *file) hardware(c *Config) error {
	list := f.Hardware.Placeholders
	if len(list) > maxPlaceholders {
		return f.check("hardware.placeholders", invalid(fmt.Sprintf("list at most %d", maxPlaceholders), "a list of %d values", len(list)))
	}
	for _, s := range list {
		if strings.TrimSpace(s) == "" || len(s) > maxPlaceholder {
			return f.check("hardware.placeholders", invalid(fmt.Sprintf("list values of 1 to %d bytes", maxPlaceholder), "%q is not a hardware value", s))
		}
	}
	c.Placeholders = list
	return nil
}

// Apply puts the flags over c. Its errors have the code [fault.Usage].
func (f Flags) Apply(c *Config) error {
	for _, a := range []struct {
		flag, value string
		apply       func(string) error
	}{
		{"--data-dir", f.DataDir, func(s string) (err error) { c.DataDir, err = filepath.Abs(s); return err }},
		{"--host-root", f.HostRoot, func(s string) (err error) { c.HostRoot, err = filepath.Abs(s); return err }},
		{"--device", f.TPMDevice, func(s string) (err error) { c.TPM.Device, err = parseDevice(s); return err }},
		{"--log-level", f.LogLevel, func(s string) (err error) { c.Log.Level, err = parseLevel(s); return err }},
		{"--log-format", f.LogFormat, func(s string) (err error) { c.Log.JSON, err = parseFormat(s); return err }},
	} {
		if a.value == "" {
			continue
		}
		if err := a.apply(a.value); err != nil {
			return fault.New(fault.Usage, fault.HintOf(err), "%s: %w", a.flag, err)
		}
	}
	return nil
}
