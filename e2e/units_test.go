package e2e_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/better-compute/bcd/agent/config"
	"github.com/better-compute/bcd/internal/fault"
)

const unitFiles = "../packaging/systemd"

// directive is a line of a unit.
type directive struct{ section, key, value string }

// unit reads a unit as systemd does: sections, keys and values. A drop-in's lines follow.
func unit(t *testing.T, files ...string) (all []directive) {
	t.Helper()
	for _, name := range files {
		content, err := os.ReadFile(filepath.Join(unitFiles, name))
		if err != nil {
			t.Fatal(err)
		}
		section := ""
		for i, line := range strings.Split(string(content), "\n") {
			line = strings.TrimSpace(line)
			head, isSection := strings.CutPrefix(line, "[")
			key, value, isDirective := strings.Cut(line, "=")
			switch {
			case line == "", strings.HasPrefix(line, "#"):
			case isSection:
				section = strings.TrimSuffix(head, "]")
				if !slices.Contains([]string{"Unit", "Service", "Install"}, section) {
					t.Errorf("%s:%d: section %q", name, i+1, section)
				}
			case isDirective && section != "":
				all = append(all, directive{section, key, value})
			default:
				t.Errorf("%s:%d: %q", name, i+1, line)
			}
		}
	}
	return all
}

// values returns what is set for a key: an empty value forgets what came before.
func values(all []directive, key string) (set []string) {
	for _, d := range all {
		switch {
		case d.key != key:
		case d.value == "":
			set = nil
		default:
			set = append(set, d.value)
		}
	}
	return set
}

// one returns the value that counts of a key that is no list.
func one(all []directive, key string) string {
	set := values(all, key)
	if len(set) == 0 {
		return ""
	}
	return set[len(set)-1]
}

// The units agree with the program: its commands, its exit statuses, its paths.
func TestUnits(t *testing.T) {
	t.Parallel()
	alone := unit(t, "bcd.service")
	node := unit(t, "bcd.service", "bcd.service.d/helper.conf")
	helper := unit(t, "bcd-helper.service")
	defaults := config.Default()
	status := strconv.Itoa(fault.ExitConfig)
	for name, want := range map[string]struct {
		unit  []directive
		key   string
		value string
	}{
		"the node's command":                 {alone, "ExecStart", "/usr/local/bin/bcd node"},
		"the helper's command":               {helper, "ExecStart", "/usr/local/bin/bcd helper"},
		"the node's state":                   {alone, "StateDirectory", filepath.Base(defaults.DataDir)},
		"the node's state's mode":            {alone, "StateDirectoryMode", "0700"},
		"the node's sockets, alone":          {alone, "RuntimeDirectory", filepath.Base(filepath.Dir(defaults.Status.Socket))},
		"the node's sockets, under [helper]": {node, "ReadWritePaths", filepath.Dir(defaults.Status.Socket)},
		"the helper's socket":                {helper, "RuntimeDirectory", filepath.Base(filepath.Dir(defaults.Helper.Socket))},
		"the sockets outlive the helper":     {helper, "RuntimeDirectoryPreserve", "yes"},
		"nobody replaces the helper's":       {helper, "RuntimeDirectoryMode", "1775"},
		"no runtime folder of the node":      {node, "RuntimeDirectory", ""},
		"the node's user":                    {node, "User", "bcd"},
		"the helper's user":                  {helper, "User", "root"},
		"the helper's group":                 {helper, "Group", one(node, "User")},
		"the node's capabilities":            {node, "CapabilityBoundingSet", ""},
		"the node's devices":                 {node, "DeviceAllow", ""},
		"the node's configuration":           {node, "LoadCredential", "config.toml:" + config.DefaultPath},
		"the helper's network":               {helper, "PrivateNetwork", "yes"},
		"the helper's device":                {helper, "DeviceAllow", defaults.TPM.Device + " rw"},
		"the node's restart":                 {alone, "Restart", "on-failure"},
		"the node's pause":                   {alone, "RestartSec", "5"},
		"no limit of starts":                 {alone, "StartLimitIntervalSec", "0"},
		"no restart for a configuration":     {alone, "RestartPreventExitStatus", status},
		"nor of the helper":                  {helper, "RestartPreventExitStatus", strconv.Itoa(fault.ExitRefused) + " " + status},
		"the node says that it is ready":     {alone, "Type", "notify"},
		"the helper says that it is ready":   {helper, "Type", "notify"},
		"the node comes after the helper":    {node, "After", "bcd-helper.service"},
		"a helper that stops stops no node":  {node, "Requires", ""},
	} {
		if got := one(want.unit, want.key); got != want.value {
			t.Errorf("%s: %s is %q, want %q", name, want.key, got, want.value)
		}
	}
	for _, file := range []string{"bcd.service", "bcd-helper.service"} {
		program := build(t, "./cmd/bcd")
		args := strings.Fields(one(unit(t, file), "ExecStart"))
		run(t, 0, environment(), program, append(args[1:], "--help")...)
	}
}

// systemd knows every directive, and finds the units as closed as they are meant to be.
func TestUnitsAreHardened(t *testing.T) {
	t.Parallel()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skipf("systemd-analyze is not installed (apt-get install systemd): %v", err)
	}
	if out, err := exec.CommandContext(t.Context(), analyze, "security", "--help").CombinedOutput(); err != nil || !strings.Contains(string(out), "--offline") {
		t.Skip("systemd-analyze is older than 250, and judges no files")
	}
	root := func(files ...string) string {
		dir := t.TempDir()
		units := filepath.Join(dir, "etc/systemd/system")
		for _, name := range append(files, "sysinit.target", "shutdown.target", "basic.target", "network-online.target", "multi-user.target") {
			content, err := os.ReadFile(filepath.Join(unitFiles, name))
			if err != nil && strings.HasSuffix(name, ".target") {
				content, err = []byte("[Unit]\nDescription=one of the system's\n"), nil
			}
			if err == nil {
				err = os.MkdirAll(filepath.Dir(filepath.Join(units, name)), 0o700)
			}
			if err == nil {
				err = os.WriteFile(filepath.Join(units, name), content, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		program := filepath.Join(dir, "usr/local/bin/bcd")
		if err := os.MkdirAll(filepath.Dir(program), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o700); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
		return dir
	}
	for _, c := range []struct {
		name  string
		most  string // ten times the exposure level
		unit  string
		files []string
	}{
		{"the node alone", "25", "bcd.service", []string{"bcd.service"}},
		{"the node under [helper]", "15", "bcd.service", []string{"bcd.service", "bcd.service.d/helper.conf", "bcd-helper.service"}},
		{"the helper", "30", "bcd-helper.service", []string{"bcd.service", "bcd.service.d/helper.conf", "bcd-helper.service"}},
	} {
		dir := root(c.files...)
		out, err := exec.CommandContext(t.Context(), analyze, "security", "--offline=true", "--no-pager", "--root="+dir, "--threshold="+c.most, c.unit).CombinedOutput()
		if err != nil {
			lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
			t.Errorf("%s: more than %s tenths: %v: %s", c.name, c.most, err, lines[len(lines)-1])
		}
		out, _ = exec.CommandContext(t.Context(), analyze, "verify", "--root="+dir, c.unit).CombinedOutput() // what it says counts
		for _, complaint := range []string{"Unknown", "Failed to parse", "ignoring", "Invalid", "not executable"} {
			if strings.Contains(string(out), complaint) {
				t.Errorf("%s: %s", c.name, out)
				break
			}
		}
	}
}
