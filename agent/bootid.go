package agent

import (
	"os"
	"path/filepath"
	"strings"
)

// bootID returns the kernel's boot id, a UUID that changes with each boot; "" where it cannot be read.
func bootID(root string) string {
	if root == "" {
		root = "/"
	}
	b, err := os.ReadFile(filepath.Join(root, "proc/sys/kernel/random/boot_id"))
	if err != nil || len(b) > 64 {
		return ""
	}
	return strings.TrimSpace(string(b))
}
