package config_test

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/better-compute/bcd/agent/config"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/pin"
)

var pins = []pin.Pin{pin.OfSPKI([]byte("a")), pin.OfSPKI([]byte("b")), pin.OfSPKI([]byte("c")), pin.OfSPKI([]byte("d"))}

// document is the one of the joining guide, with pins.
var document = fmt.Sprintf(`gateway_url = "https://gw.eu.example.com"
site = "site_01k5w0x5eqf2rvs3y5c6hz8m9t"
serving_ca_spki_pin = "%s"
join_signing_key_pin = "%s"
join_encryption_key_pin = "%s"
`, pins[0], pins[1], pins[2])

func write(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func want(path string) *config.Config {
	c := config.Default()
	c.Path = path
	c.Gateway = config.Gateway{URL: "https://gw.eu.example.com", Address: "gw.eu.example.com:443", ServerName: "gw.eu.example.com"}
	c.Site = "site_01k5w0x5eqf2rvs3y5c6hz8m9t"
	c.ServingCA, c.JoinSigning, c.JoinEncryption = pin.Set{pins[0]}, pin.Set{pins[1]}, pin.Set{pins[2]}
	return c
}

// Req: CF-006 CF-007 CF-008 CF-009 CF-010 JF-006
func TestDocumentedFile(t *testing.T) {
	for name, content := range map[string]string{
		"as it is":                document,
		"with a byte order mark":  "\ufeff" + document,
		"with Windows line ends":  strings.ReplaceAll(document, "\n", "\r\n"),
		"with comments and space": "# written by hand\n\n" + document + "  \n# end",
		"with empty tables":       document + "[tpm]\n[helper]\n[log]\n[metrics]\n[status]\n[hardware]\n",
	} {
		path := write(t, content)
		got, err := config.Load(config.Options{Path: path})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(want(path), got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestWholeFile(t *testing.T) {
	path := write(t, fmt.Sprintf(`gateway_url = "https://[2001:db8::1]:8443/"
site = "site_1"
serving_ca_spki_pin = ["%s", "%s"]
join_signing_key_pin = ["%s"]
join_encryption_key_pin = ["%s", "%s", "%s"]
gateway_server_name = "gw.eu.example.com"
data_dir = "/srv/bcd/"
host_root = "/host"
tpm = { mode = "required", device = "unix:/run/swtpm/sock", ek = "0x01c0000a", endorsement_auth_file = "/etc/bcd/eh", owner_auth_file = "/etc/bcd/oh", auto_rejoin = true }
metrics.listen = "[::1]:9464"

[helper]
user = "bcd"
socket = "/run/bcd/other.sock"

[log]
level = "debug"
format = "json"

[status]
socket = "/run/bcd/s.sock"

[hardware]
placeholders = ["ACME-0001", "Kein Wert"]
`, pins[0], pins[3], pins[1], pins[2], pins[3], pins[2]))
	got, err := config.Load(config.Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&config.Config{
		Path:           path,
		Gateway:        config.Gateway{URL: "https://[2001:db8::1]:8443/", Address: "[2001:db8::1]:8443", ServerName: "gw.eu.example.com"},
		Site:           "site_1",
		ServingCA:      pin.Set{pins[0], pins[3]},
		JoinSigning:    pin.Set{pins[1]},
		JoinEncryption: pin.Set{pins[2], pins[3]},
		DataDir:        "/srv/bcd",
		HostRoot:       "/host",
		TPM: config.TPM{
			Mode: config.TPMRequired, Device: "unix:/run/swtpm/sock", EK: 0x01c0000a,
			EndorsementAuthFile: "/etc/bcd/eh", OwnerAuthFile: "/etc/bcd/oh", AutoRejoin: true,
		},
		Helper:       config.Helper{User: "bcd", Socket: "/run/bcd/other.sock"},
		Log:          config.Log{Level: slog.LevelDebug, JSON: true},
		Metrics:      config.Metrics{Network: "tcp", Address: "[::1]:9464"},
		Status:       config.Status{Socket: "/run/bcd/s.sock"},
		Placeholders: []string{"ACME-0001", "Kein Wert"},
	}, got); diff != "" {
		t.Error(diff)
	}
}

// Req: CF-018
func TestWrongFilesSayWhereAndWhatToDo(t *testing.T) {
	line := func(n int, old, new string) string {
		lines := strings.Split(document, "\n")
		if !strings.Contains(lines[n-1], old) {
			t.Fatalf("line %d has no %q", n, old)
		}
		lines[n-1] = strings.Replace(lines[n-1], old, new, 1)
		return strings.Join(lines, "\n")
	}
	without := func(key string) string {
		var kept []string
		for _, l := range strings.Split(document, "\n") {
			if !strings.HasPrefix(l, key) {
				kept = append(kept, l)
			}
		}
		return strings.Join(kept, "\n")
	}
	add := func(s string) string { return document + s }
	url := func(s string) string { return line(1, "https://gw.eu.example.com", s) }

	for name, c := range map[string]struct{ content, message, hint string }{
		"empty":                  {"", "it is empty", "bcd/config.toml"},
		"only space":             {"\n \t\r\n", "it is empty", "bcd/config.toml"},
		"not UTF-8":              {"site = \"\xff\"\n", "not UTF-8", "UTF-8"},
		"not TOML":               {"[Unit]\nDescription=bcd node\n", "line 2, column 13: ", "correct this line"},
		"another program's file": {"[Unit]\nDescription=\"bcd node\"\n", "line 1, column 2: unknown table \"[Unit]\"", "remove it; the tables are [tpm]"},
		"a name that was cut":    {document + "gateway = \"x\"\n", "line 6, column 1: unknown key \"gateway\"", "write gateway_url"},
		"JSON":                   {`{"site": "site_1"}`, "line 1, column 1: ", "correct this line"},
		"no quotes":              {line(2, `"site_01k5w0x5eqf2rvs3y5c6hz8m9t"`, "site_1"), "line 2, column 8: ", "correct this line"},
		"a key twice":            {add("site = \"site_2\"\n"), "line 6, column 1: ", "correct this line"},
		"cut in a value":         {document[:len(document)-3], "line 5, ", "correct this line"},

		"a mistyped pin":              {line(3, "serving_ca_spki_pin", "serving_ca_pin"), `line 3, column 1: unknown key "serving_ca_pin"`, "write serving_ca_spki_pin"},
		"a hyphen":                    {line(4, "join_signing_key_pin", "join-signing-key-pin"), `line 4, column 1: unknown key "join-signing-key-pin"`, "write join_signing_key_pin"},
		"capitals":                    {line(2, "site", "Site"), `line 2, column 1: unknown key "Site"`, "write site"},
		"capitals beside the key":     {add("Site = \"site_2\"\n"), `line 6, column 1: unknown key "Site"`, "write site"},
		"a control plane's URL":       {add("server = \"https://compute.example.com\"\n"), `line 6, column 1: unknown key "server"`, "remove it; the keys here are gateway_url, site,"},
		"an unknown table":            {add("[tmp]\nmode = \"off\"\n"), `line 6, column 2: unknown table "[tmp]"`, "write [tpm]"},
		"an unknown table, inline":    {add("tmp = { mode = \"off\" }\n"), `line 6, column 1: unknown table "[tmp]"`, "write [tpm]"},
		"an unknown table, dotted":    {add("tmp.mode = \"off\"\n"), `line 6, column 1: unknown table "[tmp]"`, "write [tpm]"},
		"an unknown table below one":  {add("[tpm.keys]\na = 1\n"), `line 6, column 2: unknown table "[tpm.keys]"`, "remove it"},
		"an unknown key of a table":   {add("[log]\n  lvel = \"info\"\n"), `line 7, column 3: unknown key "log.lvel"`, "write level"},
		"an unknown key, dotted":      {add("log.lvel = \"info\"\n"), `line 6, column 1: unknown key "log.lvel"`, "write level"},
		"an unknown key, inline":      {add("log = { lvel = \"info\" }\n"), `line 6, column 9: unknown key "log.lvel"`, "write level"},
		"nothing like a known key":    {add("[log]\nsyslog_facility = \"daemon\"\n"), `unknown key "log.syslog_facility"`, "remove it; the keys here are level, format"},
		"a top key below a table":     {add("[tpm]\ndata_dir = \"/x\"\n"), `line 7, column 1: unknown key "tpm.data_dir"`, `move "data_dir" above the first [table]`},
		"a table's key at the top":    {add("endorsement_auth_file = \"/x\"\n"), `line 6, column 1: unknown key "endorsement_auth_file"`, `move "endorsement_auth_file" below [tpm]`},
		"a key of a scalar":           {add("data_dir.x = \"/x\"\n"), `line 6, column 1: unknown key "data_dir.x"`, "write data_dir"},
		"a table that is text":        {add("tpm = \"off\"\n"), "line 6, ", "correct this line"},
		"a table that is a list":      {add("[[tpm]]\nmode = \"off\"\n"), "line 6, ", "correct this line"},
		"text that is a number":       {line(2, `"site_01k5w0x5eqf2rvs3y5c6hz8m9t"`, "1"), "line 2, column 8: site: ", "correct this line"},
		"text that is a list":         {line(1, `"https://gw.eu.example.com"`, `["https://gw.eu.example.com"]`), "line 1, ", "correct this line"},
		"truth that is text":          {add("[tpm]\nauto_rejoin = \"yes\"\n"), "line 7, ", "correct this line"},
		"a list of numbers":           {add("[hardware]\nplaceholders = [1]\n"), "line 7, ", "correct this line"},
		"no gateway_url":              {without("gateway_url"), "gateway_url is missing", "add the line"},
		"no site":                     {without("site"), "site is missing", "add the line"},
		"no serving_ca_spki_pin":      {without("serving_ca"), "serving_ca_spki_pin is missing", "add the line"},
		"no join_signing_key_pin":     {without("join_signing"), "join_signing_key_pin is missing", "add the line"},
		"no join_encryption_key_pin":  {without("join_encryption"), "join_encryption_key_pin is missing", "add the line"},
		"http":                        {url("http://gw.example.com"), `line 1, column 1: gateway_url: "http://gw.example.com" does not start with https://`, "write it as https://"},
		"URL: no scheme":              {url("gw.example.com"), "is not a URL", "write it as https://"},
		"URL: host and port only":     {url("gw.example.com:443"), `does not start with https://`, "write it as https://"},
		"URL: empty":                  {url(""), "is not a URL", "write it as https://"},
		"URL: a path":                 {url("https://gw.example.com/api"), "has more than a host and a port", "write it as https://"},
		"URL: a query":                {url("https://gw.example.com?a=b"), "has more than a host and a port", "write it as https://"},
		"URL: an empty query":         {url("https://gw.example.com?"), "has more than a host and a port", "write it as https://"},
		"URL: a fragment":             {url("https://gw.example.com#a"), "has more than a host and a port", "write it as https://"},
		"URL: no host":                {url("https://"), "names no host", "write it as https://"},
		"URL: only a port":            {url("https://:443"), "names no host", "write it as https://"},
		"URL: port 0":                 {url("https://gw.example.com:0"), "no port between 1 and 65535", "write it as https://"},
		"URL: port 65536":             {url("https://gw.example.com:65536"), "no port between 1 and 65535", "write it as https://"},
		"URL: an empty port":          {url("https://gw.example.com:"), "has an empty port", "write it as https://"},
		"URL: a zone":                 {url("https://[fe80::1%25eth0]"), "names no host", "write it as https://"},
		"URL: a name that is no name": {url("https://gw_1.example.com"), "names no host", "write it as https://"},
		"URL: umlauts":                {url("https://bücher.example"), "names no host", "write it as https://"},
		"URL: a number":               {url("https://12345"), "names no host", "write it as https://"},
		"URL: half an address":        {url("https://10.0.1"), "names no host", "write it as https://"},
		"URL: two dots":               {url("https://gw..example.com"), "names no host", "write it as https://"},
		"a server name with a port":   {add("gateway_server_name = \"gw.example.com:443\"\n"), "line 6, column 1: gateway_server_name: ", "write the name"},
		"an empty server name":        {add("gateway_server_name = \"\"\n"), "gateway_server_name: ", "write the name"},
		"another kind of id":          {line(2, "site_", "pool_"), `is not a site's id`, "write the site's id"},
		"an id in capitals":           {line(2, "site_01k5w", "site_01K5W"), `is not a site's id`, "write the site's id"},
		"an id that is a path":        {line(2, "site_01k5w", "site_../"), `is not a site's id`, "write the site's id"},
		"no id":                       {line(2, "site_01k5w0x5eqf2rvs3y5c6hz8m9t", "site_"), `is not a site's id`, "write the site's id"},
		"the guide's own dots":        {line(2, "01k5w0x5eqf2rvs3y5c6hz8m9t", "…"), `is not a site's id`, "write the site's id"},
		"a pin in base64url":          {line(3, pins[0].String(), "sha256/"+strings.NewReplacer("+", "-", "/", "_").Replace(pins[0].String()[7:])), "line 3, column 1: serving_ca_spki_pin: ", "write it as " + pins[0].String()},
		"a pin in hex":                {line(4, pins[1].String(), fmt.Sprintf("%x", pins[1][:])), "line 4, column 1: join_signing_key_pin: ", "write it as " + pins[1].String()},
		"a pin without padding":       {line(5, `="`, `"`), "line 5, column 1: join_encryption_key_pin: ", "write it as " + pins[2].String()},
		"an empty list of pins":       {line(3, `"`+pins[0].String()+`"`, "[]"), "a list of 0 pins", "at most 3"},
		"four pins":                   {line(3, `"`+pins[0].String()+`"`, fmt.Sprintf(`["%s","%s","%s","%s"]`, pins[0], pins[1], pins[2], pins[3])), "a list of 4 pins", "at most 3"},
		"one wrong pin of two":        {line(3, `"`+pins[0].String()+`"`, fmt.Sprintf(`["%s","sha256/x"]`, pins[0])), `"sha256/x" is not a pin`, "sha256/"},
		"a pin that is a number":      {line(3, `"`+pins[0].String()+`"`, "7"), "7 is not a pin", "in quotes"},
		"a list in a list":            {line(3, `"`+pins[0].String()+`"`, `[["x"]]`), "is not a pin", "in quotes"},
		"a pin that is a table":       {line(3, `"`+pins[0].String()+`"`, `{ a = 1 }`), "is not a pin", "in quotes"},
		"a relative data_dir":         {add("data_dir = \"bcd\"\n"), `line 6, column 1: data_dir: "bcd" is not an absolute path`, "starts with /"},
		"an empty host_root":          {add("host_root = \"\"\n"), "is not an absolute path", "starts with /"},
		"a relative auth file":        {add("[tpm]\nowner_auth_file = \"oh\"\n"), "line 7, column 1: tpm.owner_auth_file: ", "starts with /"},
		"an unknown TPM mode":         {add("[tpm]\nmode = \"on\"\n"), `line 7, column 1: tpm.mode: "on" is not a TPM mode`, "auto, required or off"},
		"an empty TPM device":         {add("[tpm]\ndevice = \"\"\n"), "is not a TPM device", "/dev/tpmrm0"},
		"a TPM over TCP":              {add("[tpm]\ndevice = \"tcp:localhost:2321\"\n"), "is not a TPM device", "/dev/tpmrm0"},
		"a relative TPM socket":       {add("[tpm]\ndevice = \"unix:sock\"\n"), "is not an absolute path", "starts with /"},
		"an EK by name":               {add("[tpm]\nek = \"rsa\"\n"), "is not an endorsement key's NV index", "0x01c00002"},
		"an EK outside the range":     {add("[tpm]\nek = \"0x81010001\"\n"), "is not an endorsement key's NV index", "0x01c00002"},
		"root as the node's user":     {add("[helper]\nuser = \"root\"\n"), `"root" cannot be the node's user`, "other than root"},
		"a number as the node's user": {add("[helper]\nuser = \"0\"\n"), `"0" cannot be the node's user`, "other than root"},
		"an empty user":               {add("[helper]\nuser = \"\"\n"), "cannot be the node's user", "other than root"},
		"a helper without a user":     {add("[helper]\nsocket = \"/run/x\"\n"), "line 7, column 1: helper.socket: ", "add user"},
		"a socket's path too long":    {add("[status]\nsocket = \"/" + strings.Repeat("x", 107) + "\"\n"), "is too long for the kernel", "at most 107 bytes"},
		"an unknown log level":        {add("[log]\nlevel = \"trace\"\n"), `"trace" is not a log level`, "debug, info, warn or error"},
		"a log level in capitals":     {add("[log]\nlevel = \"INFO\"\n"), `"INFO" is not a log level`, "debug, info, warn or error"},
		"an unknown log format":       {add("[log]\nformat = \"xml\"\n"), `"xml" is not a log format`, "text or json"},
		"metrics for everyone":        {add("[metrics]\nlisten = \"0.0.0.0:9464\"\n"), "is not on the loopback", "127.0.0.1:9464"},
		"metrics on all addresses":    {add("[metrics]\nlisten = \":9464\"\n"), "is not on the loopback", "127.0.0.1:9464"},
		"metrics on a name":           {add("[metrics]\nlisten = \"localhost:9464\"\n"), "is not on the loopback", "127.0.0.1:9464"},
		"metrics without a port":      {add("[metrics]\nlisten = \"127.0.0.1\"\n"), "is not an address and a port", "127.0.0.1:9464"},
		"metrics on port 0":           {add("[metrics]\nlisten = \"127.0.0.1:0\"\n"), "is not an address and a port", "127.0.0.1:9464"},
		"a placeholder of nothing":    {add("[hardware]\nplaceholders = [\" \"]\n"), "is not a hardware value", "1 to 256 bytes"},
		"a placeholder too long":      {add("[hardware]\nplaceholders = [\"" + strings.Repeat("x", 257) + "\"]\n"), "is not a hardware value", "1 to 256 bytes"},
		"too large":                   {document + strings.Repeat("#", 64<<10), "the file is too large: more than 65536 bytes", "check that --config"},
	} {
		path := write(t, c.content)
		got, err := config.Load(config.Options{Path: path})
		if got != nil || fault.CodeOf(err) != fault.Config {
			t.Errorf("%s: %v, %v", name, got, err)
			continue
		}
		if !strings.Contains(err.Error(), c.message) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: message %q, want %q", name, err, c.message)
		}
		if hint := fault.HintOf(err); !strings.Contains(hint, c.hint) {
			t.Errorf("%s: hint %q, want %q", name, hint, c.hint)
		}
		if strings.ContainsAny(err.Error(), "\n\r") {
			t.Errorf("%s: %q is not one line", name, err)
		}
	}
}

func TestPasswordInTheURLIsNotRepeated(t *testing.T) {
	path := write(t, strings.Replace(document, "https://", "https://user:hunter2@", 1))
	_, err := config.Load(config.Options{Path: path})
	if err == nil || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), "no password") {
		t.Errorf("%v", err)
	}
}

func TestMissingFileNamesItself(t *testing.T) {
	dir := t.TempDir()
	explicit, standard := filepath.Join(dir, "other.toml"), filepath.Join(dir, "config.toml")
	for path, o := range map[string]config.Options{
		explicit: {Path: explicit, DefaultPath: standard},
		standard: {DefaultPath: standard, CredentialsDir: filepath.Join(dir, "credentials")},
	} {
		_, err := config.Load(o)
		if fault.CodeOf(err) != fault.Config || !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), path) {
			t.Errorf("%v", err)
		}
		if hint := fault.HintOf(err); !strings.Contains(hint, "bcd/config.toml") || !strings.Contains(hint, "--config") {
			t.Errorf("hint %q", hint)
		}
	}
}

func TestWhereTheFileIsLookedFor(t *testing.T) {
	explicit := write(t, document)
	credential := write(t, strings.Replace(document, "site_01k5w", "site_fromcredentials", 1))
	standard := write(t, strings.Replace(document, "site_01k5w", "site_fromdefault", 1))
	empty := t.TempDir()
	for name, c := range map[string]struct {
		o    config.Options
		path string
	}{
		"--config wins":               {config.Options{Path: explicit, CredentialsDir: filepath.Dir(credential), DefaultPath: standard}, explicit},
		"then the credentials":        {config.Options{CredentialsDir: filepath.Dir(credential), DefaultPath: standard}, credential},
		"then the default":            {config.Options{DefaultPath: standard}, standard},
		"credentials of another kind": {config.Options{CredentialsDir: empty, DefaultPath: standard}, standard},
	} {
		got, err := config.Load(c.o)
		if err != nil || got.Path != c.path || got.JoinKeyDir() != filepath.Dir(c.path) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	broken := write(t, "?")
	if _, err := config.Load(config.Options{CredentialsDir: filepath.Dir(broken), DefaultPath: standard}); err == nil {
		t.Error("a credential that is broken is passed over")
	}
}

func TestFilesThatAreNotTrusted(t *testing.T) {
	for mode, trusted := range map[fs.FileMode]bool{0o600: true, 0o400: true, 0o644: true, 0o440: true, 0o755: true, 0o660: false, 0o602: false, 0o666: false, 0o777: false} {
		path := write(t, document)
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		_, err := config.Load(config.Options{Path: path})
		if (err == nil) != trusted {
			t.Errorf("mode %04o: %v", mode, err)
		}
		if err != nil && (fault.CodeOf(err) != fault.Config || fault.HintOf(err) != "run: chmod 0600 "+path) {
			t.Errorf("mode %04o: %v, hint %q", mode, err, fault.HintOf(err))
		}
	}
}

func TestFilesOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("giving a file to another user needs root")
	}
	path := write(t, document)
	if err := os.Chown(path, 65534, 0); err != nil {
		t.Skip("this system lets nobody give files away: ", err)
	}
	_, err := config.Load(config.Options{Path: path})
	if fault.CodeOf(err) != fault.Config || !strings.Contains(err.Error(), "65534") || fault.HintOf(err) != "run: chown root "+path {
		t.Errorf("%v, hint %q", err, fault.HintOf(err))
	}
}

func TestUnreadableFile(t *testing.T) {
	path := write(t, document)
	if err := os.Chmod(path, 0); err != nil {
		t.Fatal(err)
	}
	_, err := config.Load(config.Options{Path: path})
	if os.Geteuid() == 0 {
		if err != nil { // mode 0000 does not stop root, and nobody else can have written it
			t.Error(err)
		}
		return
	}
	if fault.CodeOf(err) != fault.Config || !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), path) {
		t.Errorf("%v", err)
	}
}

func TestWhatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{dir: "a directory", fifo: "a FIFO", "/dev/null": "a device"} {
		_, err := config.Load(config.Options{Path: path})
		if fault.CodeOf(err) != fault.Config || !strings.Contains(err.Error(), "it is "+want+", not a regular file") {
			t.Errorf("%s: %v", path, err)
		}
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(write(t, document), link); err != nil {
		t.Fatal(err)
	}
	if _, err := config.Load(config.Options{Path: link}); err != nil {
		t.Errorf("a link to a good file: %v", err)
	}
}

func TestFlagsWin(t *testing.T) {
	path := write(t, document+"data_dir = \"/a\"\nhost_root = \"/b\"\n[log]\nlevel = \"error\"\nformat = \"json\"\n")
	got, err := config.Load(config.Options{Path: path, Flags: config.Flags{DataDir: "/c/", HostRoot: "/d", LogLevel: "warn", LogFormat: "text"}})
	if err != nil {
		t.Fatal(err)
	}
	if got.DataDir != "/c" || got.HostRoot != "/d" || got.Log != (config.Log{Level: slog.LevelWarn}) {
		t.Errorf("%+v", got)
	}
	t.Chdir(t.TempDir())
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	got, err = config.Load(config.Options{Path: path, Flags: config.Flags{DataDir: "state"}})
	if err != nil || got.DataDir != filepath.Join(wd, "state") {
		t.Errorf("a relative flag: %v, %v", got, err)
	}
	for _, f := range []config.Flags{{LogLevel: "loud"}, {LogFormat: "xml"}} {
		_, err := config.Load(config.Options{Path: path, Flags: f})
		if fault.CodeOf(err) != fault.Usage || !strings.HasPrefix(err.Error(), "--log-") || fault.HintOf(err) == "" {
			t.Errorf("%v", err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(document))
	f.Add([]byte(document + "tpm = { mode = \"off\" }\n[log]\nlevel = \"info\"\n[[x]]\n"))
	f.Add([]byte("a.b.c = 1\n[d.e]\n'f' = '''\n'''\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := config.Parse(b)
		if err != nil {
			if c != nil || fault.CodeOf(err) != fault.Config || strings.ContainsAny(err.Error(), "\n\r") {
				t.Errorf("%v, %v", c, err)
			}
			return
		}
		if c.Gateway.Address == "" || c.Site == "" || len(c.ServingCA) == 0 || len(c.JoinSigning) == 0 || len(c.JoinEncryption) == 0 ||
			!filepath.IsAbs(c.DataDir) || !filepath.IsAbs(c.HostRoot) || !filepath.IsAbs(c.Status.Socket) {
			t.Errorf("%q is accepted as %+v", b, c)
		}
	})
}
