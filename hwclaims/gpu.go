package hwclaims

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
)

const (
	nvidiaDir     = "proc/driver/nvidia"
	nvidiaGPUs    = nvidiaDir + "/gpus"
	nvidiaVersion = nvidiaDir + "/version"
)

// readGPUs asks NVML, else the driver's own files. Without a driver there is nothing to ask, and no child is started.
// NVML answers for the machine that we run on (live), so a recorded machine has only its files.
func (f *facts) readGPUs(ctx context.Context, t tree, live bool, o Options) {
	switch exists, problem := t.lstat(nvidiaDir); {
	case problem != nil:
		f.unreadable = append(f.unreadable, Unreadable{What: whatGPU, Path: "/" + nvidiaDir, Reason: cause(problem)})
		return
	case !exists:
		f.notes = append(f.notes, "no NVIDIA driver: /"+nvidiaDir+" does not exist")
		return
	}
	if haveNVML && len(o.NVMLChild) > 0 && live {
		answer, err := askNVML(ctx, o.NVMLChild, o.NVMLTimeout)
		if err == nil && len(answer.gpus()) > 0 {
			f.gpus = answer.gpus()
			f.notes = append(f.notes, answer.Notes...)
			return
		}
		if err == nil {
			err = errors.New("it lists no GPU")
		}
		note := fmt.Sprintf("GPUs are read from /%s: NVML: %v", nvidiaGPUs, err)
		if driver := driverVersion(t.field(nvidiaVersion).bytes); driver != "" {
			note += " (the loaded driver is " + driver + ")"
		}
		f.notes = append(f.notes, note)
	}
	f.readProcGPUs(t)
}

func (f *facts) readProcGPUs(t tree) {
	entries, err := fs.ReadDir(t.fsys, nvidiaGPUs)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		f.notes = append(f.notes, "no GPU: /"+nvidiaGPUs+" does not exist")
	case err != nil:
		f.unreadable = append(f.unreadable, Unreadable{What: whatGPU, Path: "/" + nvidiaGPUs, Reason: cause(err)})
	}
	for _, e := range entries {
		path := nvidiaGPUs + "/" + e.Name() + "/information"
		switch info := t.field(path); info.state {
		case fieldUnreadable:
			f.unreadable = append(f.unreadable, Unreadable{What: whatGPU, Path: info.path, Reason: info.cause})
		case fieldAbsent:
			f.notes = append(f.notes, "no GPU information: /"+path+" does not exist")
		case fieldPresent:
			g, ok := parseGPUInformation(info.bytes)
			if !ok {
				f.notes = append(f.notes, "no GPU UUID in /"+path)
				continue
			}
			f.gpus = append(f.gpus, g)
		}
	}
}

// vgpuModel matches the models of vGPU instances ("NVIDIA A40-48Q", "GRID T4-2B", "NVIDIA A100-4-20C"): the frame
// buffer's size and the licence's letter. A physical one ends otherwise ("NVIDIA A100-SXM4-80GB").
var vgpuModel = pattern(`-[0-9]+[ABCQ](ME)?$`)

// parseGPUInformation reads a GPU's information file: "key: value" lines whose widths differ between drivers. Unknown keys
// are ignored.
func parseGPUInformation(s string) (gpu, bool) {
	var g gpu
	for line := range strings.Lines(s) {
		key, value, _ := strings.Cut(line, ":")
		value, _ = cleanText(value)
		switch strings.TrimSpace(key) {
		case "GPU UUID":
			g.uuid = value
		case "Model":
			g.vgpu = vgpuModel().MatchString(value)
		}
	}
	return g, g.uuid != ""
}

var versionNumber = pattern(`\b[0-9]+(\.[0-9]+)+\b`)

// driverVersion finds the version in the driver's version file: "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06".
func driverVersion(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return versionNumber().FindString(line)
}
