package agent

import (
	"context"
	"log/slog"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	"github.com/better-compute/bcd/hwclaims"
)

// Claims reads the machine's hardware. A node under [helper] has the helper read what is root's.
func (a *Agent) Claims(ctx context.Context) (hwclaims.Report, error) {
	report, err := hwclaims.Collect(ctx, a.hw)
	if err != nil || a.asked == nil || report.Incomplete() == nil {
		return report, err
	}
	firmware, err := a.asked.Firmware(ctx)
	if err != nil {
		return hwclaims.Report{}, err
	}
	return report.WithFirmware(firmware), nil
}

// joinClaims reads the hardware for a join. An identifier that exists and cannot be read ends it: the machine would join
// as another one.
func (a *Agent) joinClaims(ctx context.Context) (*daemonv1.HardwareClaims, error) {
	report, err := a.Claims(ctx)
	if err != nil {
		return nil, err
	}
	if err := report.Incomplete(); err != nil {
		return nil, err
	}
	for _, u := range report.Unreadable {
		a.log.WarnContext(ctx, "leave out hardware claim", "claim", u.What, "path", u.Path, "reason", u.Reason)
	}
	if assessed := report.Assess(); !assessed.Trusted {
		a.log.WarnContext(ctx, "join with few hardware identifiers", "classes", assessed.Classes,
			slog.String("hint", "the control plane admits such a machine only with a token that names it (--expect-serial, --expect-mac, ...)"))
	}
	return wireClaims(report.Claims), nil
}

// claimsFor reads the hardware for a join by an attestor. The key of a certificate says which node a machine is, whatever can
// be read of its hardware.
func (a *Agent) claimsFor(ctx context.Context, attestor string) (*daemonv1.HardwareClaims, error) {
	if attestor != AttestorX509PoP {
		return a.joinClaims(ctx)
	}
	report, err := a.Claims(ctx)
	if err != nil {
		return nil, err
	}
	return wireClaims(report.Claims), nil
}

func wireClaims(c hwclaims.Claims) *daemonv1.HardwareClaims {
	return &daemonv1.HardwareClaims{
		ProductUuid:      c.ProductUUID,
		ProductSerial:    c.ProductSerial,
		BoardSerial:      c.BoardSerial,
		ChassisSerial:    c.ChassisSerial,
		DevicetreeSerial: c.DeviceTreeSerial,
		Macs:             c.MACs,
		GpuUuids:         c.GPUUUIDs,
		Hostname:         c.Hostname,
		Vendor:           c.Vendor,
		ProductName:      c.ProductName,
	}
}
