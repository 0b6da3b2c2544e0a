// Package config reads what bcd is told: config.toml, the join key file beside it, and the control plane's well-known
// document.
//
// [Load] turns a file into one validated [Config] or into an error that names the file, the line and what to write
// instead. An unknown key is an error, because a mistyped pin must not pass. Trust comes from the configuration's pins
// alone: a join key, from wherever, is used only when a pin names it.
//
// The package reads and never writes, takes no environment variable by itself, and knows nothing of tokens or of the
// gateway's protocol.
package config

import (
	"log/slog"

	"github.com/better-compute/bcd/internal/pin"
)

// DefaultPath is where the configuration is when nobody says otherwise.
const DefaultPath = "/etc/bcd/config.toml"

// hintSource says where the configuration and the join key come from.
const hintSource = "copy it from the control plane, whose folder has bcd/config.toml and bcd/" + JoinKeyFile

// Config is a validated configuration. Every path in it is absolute.
type Config struct {
	// Path is the file that the configuration was read from.
	Path string
	// Gateway is where to connect.
	Gateway Gateway
	// Site is the id of the site that this machine belongs to.
	Site string
	// ServingCA pins the CA that the gateway's certificate verifies to.
	ServingCA pin.Set
	// JoinSigning pins the key that signs the answers to joins and renewals.
	JoinSigning pin.Set
	// JoinEncryption pins the key that tokens are sealed to.
	JoinEncryption pin.Set
	// DataDir holds the node's state.
	DataDir string
	// HostRoot is the root of the file system that hardware is read from.
	HostRoot string

	TPM     TPM
	Helper  Helper
	Log     Log
	Metrics Metrics
	Status  Status
	// Placeholders are hardware values of this fleet that identify nothing, beside the built-in ones.
	Placeholders []string
}

// Gateway says where the gateway is.
type Gateway struct {
	// URL is gateway_url as it was written.
	URL string
	// Address is host:port, the port 443 unless the URL names one.
	Address string
	// ServerName is what the gateway's certificate must name: gateway_server_name, else the URL's host.
	ServerName string
}

// TPMMode says whether new keys are made in the TPM.
type TPMMode string

// The TPM modes.
const (
	TPMAuto     TPMMode = "auto"     // where there is one that opens
	TPMRequired TPMMode = "required" // or fail
	TPMOff      TPMMode = "off"      // never
)

// TPM is how the host's TPM is used.
type TPM struct {
	Mode TPMMode
	// Device is a device's path, or unix: and the path of a software TPM's socket.
	Device string
	// EK names the endorsement key to use, as an NV index of the TCG's templates such as 0x01c00002; 0 for the built-in order.
	EK uint32
	// EndorsementAuthFile and OwnerAuthFile hold the authorisations of these hierarchies; empty where none is set.
	EndorsementAuthFile, OwnerAuthFile string
	// AutoRejoin lets a node whose certificate expired join again by its TPM.
	AutoRejoin bool
}

// Helper is the privilege separation: the node runs as User and asks the root helper.
type Helper struct {
	// User is the node's user; empty where there is no helper.
	User string
	// Socket is the helper's.
	Socket string
}

// Log is what is logged, and how.
type Log struct {
	Level slog.Level
	// JSON is for --log-format json; else text.
	JSON bool
}

// Metrics is where metrics are served.
type Metrics struct {
	// Network is "tcp" or "unix", empty where metrics are off.
	Network string
	// Address is a loopback host:port, or a socket's path.
	Address string
}

// Status is where the running daemon tells its state.
type Status struct {
	Socket string
}

// Default returns the configuration of a machine that says nothing: what a command uses that needs no gateway.
func Default() *Config {
	return &Config{
		DataDir:  "/var/lib/bcd",
		HostRoot: "/",
		TPM:      TPM{Mode: TPMAuto, Device: "/dev/tpmrm0"},
		Helper:   Helper{Socket: "/run/bcd/helper.sock"},
		Log:      Log{Level: slog.LevelInfo},
		Status:   Status{Socket: "/run/bcd/status.sock"},
	}
}
