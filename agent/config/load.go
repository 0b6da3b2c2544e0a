package config

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"unicode/utf8"

	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/smallfile"
)

// maxSize is the largest config.toml, in bytes.
const maxSize = 64 << 10

// fileName is the configuration's name in a directory of credentials.
const fileName = "config.toml"

// Options say where the configuration is and what wins over it.
type Options struct {
	// Path is --config: the only file that is asked, where it is given.
	Path string
	// CredentialsDir is $CREDENTIALS_DIRECTORY: its config.toml comes before the default path.
	CredentialsDir string
	// DefaultPath replaces [DefaultPath], for tests and other installations. Empty means DefaultPath.
	DefaultPath string
	// Flags win over the file.
	Flags Flags
}

// Flags are the command line's values, as they were typed. Empty means not given.
type Flags struct {
	DataDir   string // --data-dir
	HostRoot  string // --host-root
	TPMDevice string // --device
	LogLevel  string // --log-level
	LogFormat string // --log-format
}

// Load finds, reads and validates the configuration. Its errors have the code [fault.Config], those of a flag
// [fault.Usage]. Where there is no file at all the error wraps [fs.ErrNotExist].
func Load(o Options) (*Config, error) {
	c := Default()
	path, content, err := find(o)
	if err != nil {
		return nil, err
	}
	c.Path = path
	f, err := parse(content)
	if err == nil {
		err = f.into(c)
	}
	if err != nil {
		return nil, fault.New(fault.Config, "", "cannot use the configuration %q: %w", path, err)
	}
	if err := o.Flags.Apply(c); err != nil {
		return nil, err
	}
	return c, nil
}

// find returns the first configuration that exists.
func find(o Options) (path string, content []byte, err error) {
	var candidates []string
	switch {
	case o.Path != "":
		candidates = []string{o.Path}
	default:
		if o.CredentialsDir != "" {
			candidates = append(candidates, filepath.Join(o.CredentialsDir, fileName))
		}
		if o.DefaultPath == "" {
			o.DefaultPath = DefaultPath
		}
		candidates = append(candidates, o.DefaultPath)
	}
	for _, path := range candidates {
		// The directory of the configuration is where the join key is, too: a relative path must outlive a chdir.
		if path, err = filepath.Abs(path); err != nil {
			return "", nil, fault.New(fault.Config, "give --config an absolute path", "cannot find the configuration: %w", err)
		}
		content, err := read(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		return path, content, err
	}
	last := candidates[len(candidates)-1]
	return "", nil, fault.New(fault.Config,
		hintSource+"; or name another file with --config",
		"cannot read the configuration %q: %w", last, fs.ErrNotExist)
}

// read reads a configuration that only root or this user can have written.
func read(path string) ([]byte, error) {
	f, err := smallfile.Read(path, maxSize)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return nil, fault.New(fault.Config, "run bcd as root, or as the owner of the file", "cannot read the configuration %q: %w", path, err)
	case errors.Is(err, smallfile.ErrTooLarge):
		return nil, fault.New(fault.Config, "check that --config names bcd's configuration", "cannot read the configuration %q: %w", path, err)
	case err != nil:
		return nil, fault.New(fault.Config, "check the file that --config names", "cannot read the configuration %q: %w", path, err)
	case !f.OwnedBy(os.Geteuid()):
		return nil, fault.New(fault.Config, "run: chown root "+path, "cannot trust the configuration %q: it belongs to the user with id %d", path, f.UID)
	case f.Perm&0o022 != 0:
		return nil, fault.New(fault.Config, "run: chmod 0600 "+path, "cannot trust the configuration %q: others than its owner may write it (mode %04o)", path, f.Perm)
	}
	return clean(path, f.Content)
}

// clean checks that the content is text, and drops the byte order mark that some editors begin a file with.
func clean(path string, content []byte) ([]byte, error) {
	content = bytes.TrimPrefix(content, []byte("\xef\xbb\xbf"))
	switch {
	case !utf8.Valid(content):
		return nil, fault.New(fault.Config, "save the file as UTF-8", "cannot use the configuration %q: it is not UTF-8 text", path)
	case len(bytes.TrimSpace(content)) == 0:
		return nil, fault.New(fault.Config, hintSource, "cannot use the configuration %q: it is empty", path)
	}
	return content, nil
}
