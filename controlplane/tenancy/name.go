package tenancy

import (
	"strings"

	"github.com/better-compute/bcd/internal/oneline"
)

// MaxName is the length of a name, in bytes.
const MaxName = 128

// CheckName refuses what is no name of a tenant, a site, a pool or an API key. A name is for people: 1 to [MaxName] bytes
// of printable characters, without spaces at its ends. It need not be unique; the id is what things are told apart by.
func CheckName(name string) error {
	switch {
	case name == "":
		return invalid("", "name is empty")
	case len(name) > MaxName:
		return invalid("", "name is longer than %d bytes", MaxName)
	case strings.TrimSpace(name) != name:
		return invalid("", "name starts or ends with a space")
	case !oneline.Printable(name):
		return invalid("", "name holds a character that cannot be printed")
	}
	return nil
}
