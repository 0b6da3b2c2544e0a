package hwclaims_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/better-compute/bcd/hwclaims"
)

const childArgument = "nvml-child"

// TestMain lends the test binary as the NVML child, as bcd lends itself.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == childArgument {
		if err := hwclaims.NVMLChild(os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// fakeNVML is a libnvidia-ml.so.1 whose answers the macros decide.
const fakeNVML = `
#include <string.h>
#include <unistd.h>
#ifndef INIT
#define INIT 0
#endif
#ifndef MODE
#define MODE 0
#endif
#ifndef COUNT
#define COUNT 3
#endif
int nvmlInit_v2(void) {
#ifdef HANG
	for (;;) pause();
#endif
#ifdef CRASH
	*(volatile int *)0 = 1;
#endif
	return INIT;
}
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = COUNT; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) { *h = (void *)(long)(i + 1); return i == 1 ? 15 : 0; }
int nvmlDeviceGetUUID(void *h, char *s, unsigned size) {
	const char *uuid = (long)h == 1 ? "GPU-1C0FFEE0-0001-4a2b-8c3d-0123456789ab" : "GPU-1c0ffee0-0003-4a2b-8c3d-0123456789ab";
	if (size < strlen(uuid) + 1) return 7;
	strcpy(s, uuid);
	return 0;
}
#ifndef OLD
int nvmlDeviceGetVirtualizationMode(void *h, unsigned *mode) { *mode = MODE; return MODE == 99 ? 3 : 0; }
#endif
const char *nvmlErrorString(int code) { return code == 18 ? "Driver/library version mismatch" : code == 15 ? "GPU is lost" : "Unknown Error"; }
`

// library builds the fake library and makes the child find it.
func library(t *testing.T, flags ...string) []string {
	t.Helper()
	if !hwclaims.HaveNVML {
		t.Skip("built without NVML")
	}
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("gcc is not installed")
	}
	dir := t.TempDir()
	source := filepath.Join(dir, "nvml.c")
	if err := os.WriteFile(source, []byte(fakeNVML), 0o600); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"-shared", "-fPIC", "-o", filepath.Join(dir, "libnvidia-ml.so.1"), source}, flags...)
	if out, err := exec.CommandContext(t.Context(), gcc, args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	t.Setenv("LD_LIBRARY_PATH", dir)
	return child(t)
}

func child(t *testing.T) []string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{self, childArgument}
}

const gpu3 = "GPU-1c0ffee0-0003-4a2b-8c3d-0123456789ab"

func TestNVML(t *testing.T) {
	whole, vgpu, notes, err := hwclaims.AskNVML(t.Context(), library(t), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"GPU-1C0FFEE0-0001-4a2b-8c3d-0123456789ab", gpu3}; !slices.Equal(whole, want) || len(vgpu) != 0 {
		t.Errorf("whole %v, vgpu %v, want %v", whole, vgpu, want)
	}
	if len(notes) != 1 || !strings.Contains(notes[0], "GPU 1") || !strings.Contains(notes[0], "GPU is lost (NVML 15)") {
		t.Errorf("notes %q", notes)
	}
}

func TestNVMLInAGuestWithVGPU(t *testing.T) {
	whole, vgpu, _, err := hwclaims.AskNVML(t.Context(), library(t, "-DMODE=2"), time.Minute)
	if err != nil || len(whole) != 0 || len(vgpu) != 2 {
		t.Errorf("whole %v, vgpu %v: %v", whole, vgpu, err)
	}
}

func TestNVMLWithoutAnAnswerOnVirtualization(t *testing.T) {
	for name, mode := range map[string]string{"not supported": "-DMODE=99", "passthrough": "-DMODE=1", "host of vGPUs": "-DMODE=3"} {
		whole, vgpu, _, err := hwclaims.AskNVML(t.Context(), library(t, mode), time.Minute)
		if err != nil || len(whole) != 2 || len(vgpu) != 0 {
			t.Errorf("%s: whole %v, vgpu %v: %v", name, whole, vgpu, err)
		}
	}
}

func TestNVMLFailures(t *testing.T) {
	for name, test := range map[string]struct{ flag, want string }{
		"mismatch": {"-DINIT=18", "Driver/library version mismatch (NVML 18)"},
		"crash":    {"-DCRASH", "the child failed: "},
		"nonsense": {"-DCOUNT=4000000000u", "cannot list 4000000000 GPUs"},
		"old":      {"-DOLD", "libnvidia-ml.so.1 has no nvmlDeviceGetVirtualizationMode"},
	} {
		_, _, _, err := hwclaims.AskNVML(t.Context(), library(t, test.flag), time.Minute)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want %q", name, err, test.want)
		}
	}
}

func TestNVMLThatHangs(t *testing.T) {
	command := library(t, "-DHANG")
	// The child says its process id before it becomes the one that hangs.
	pidFile := filepath.Join(t.TempDir(), "pid")
	command = append([]string{"/bin/sh", "-c", `echo $$ > "$0"; exec "$@"`, pidFile}, command...)
	_, _, _, err := hwclaims.AskNVML(t.Context(), command, 300*time.Millisecond)
	if err == nil || !strings.Contains(err.Error(), "no answer within 300ms") {
		t.Fatalf("error %v", err)
	}
	pid, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	proc := "/proc/" + strings.TrimSpace(string(pid))
	for range 500 { // the kernel needs a moment
		if _, err := os.Stat(proc); err != nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("the child %s lives on", proc)
}

func TestNVMLChildThatIsNone(t *testing.T) {
	for name, command := range map[string][]string{
		"missing": {"/nonexistent/bcd"}, "says nothing": {"/bin/true"}, "fails": {"/bin/false"}, "talks": {"/bin/echo", "hello"},
		"talks too much": {"/bin/sh", "-c", "head -c 3000000 /dev/zero"},
	} {
		if _, _, _, err := hwclaims.AskNVML(t.Context(), command, time.Minute); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestNVMLWithoutLibrary(t *testing.T) {
	if !hwclaims.HaveNVML {
		t.Skip("built without NVML")
	}
	if _, err := os.Stat("/proc/driver/nvidia"); err == nil {
		t.Skip("this machine has the library")
	}
	_, _, _, err := hwclaims.AskNVML(t.Context(), child(t), time.Minute)
	if err == nil || !strings.Contains(err.Error(), "cannot load libnvidia-ml.so.1") {
		t.Errorf("error %v", err)
	}
}

func TestParseGPUInformation(t *testing.T) {
	for name, test := range map[string]struct {
		text, uuid string
		vgpu, ok   bool
	}{
		"H100": {"Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 18\nGPU UUID: \t " + gpu1 + "\nVideo BIOS: \t 96.00.74.00.01\nBus Type: \t PCIe\n" +
			"DMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\nBus Location: \t 0000:19:00.0\nDevice Minor: \t 0\nGPU Excluded:\t No\n", gpu1, false, true},
		"not started": {
			"Model: \t\t Tesla K80\nGPU UUID: \t GPU-????????-????-????-????-????????????\nVideo BIOS: \t ??.??.??.??.??\n",
			"GPU-????????-????-????-????-????????????", false, true,
		},
		"size in the name": {"Model: NVIDIA A100-SXM4-80GB\nGPU UUID:" + gpu1, gpu1, false, true},
		"vGPU":             {"Model: NVIDIA A40-48Q\nGPU UUID: " + gpu1, gpu1, true, true},
		"old vGPU":         {"Model: GRID T4-2B\nGPU UUID: " + gpu1, gpu1, true, true},
		"vGPU on MIG":      {"GPU UUID: " + gpu1 + "\nModel: NVIDIA A100-4-20C\n", gpu1, true, true},
		"no UUID":          {"Model: NVIDIA A40\n", "", false, false},
		"empty":            {"", "", false, false},
	} {
		uuid, vgpu, ok := hwclaims.ParseGPUInformation(test.text)
		if uuid != test.uuid || vgpu != test.vgpu || ok != test.ok {
			t.Errorf("%s: got %q, vgpu %v, ok %v", name, uuid, vgpu, ok)
		}
	}
}

func TestDriverVersion(t *testing.T) {
	for text, want := range map[string]string{
		"NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 06:54:38 UTC 2025\nGCC version:  gcc version 13.3.0\n": "580.65.06",
		"NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  570.133.20  Release Build":                                         "570.133.20",
		"": "", "nonsense\n1.2.3": "",
	} {
		if got := hwclaims.DriverVersion(text); got != want {
			t.Errorf("%q: version %q, want %q", text, got, want)
		}
	}
}

// NVML answers for the machine that we run on, so another machine's recording is read from its files, and the child is not
// started.
func TestRecordedGPUsAreNotAskedOfNVML(t *testing.T) {
	r := newRoot(t)
	r.write("proc/driver/nvidia/gpus/0000:02:00.0/information", "Model: NVIDIA H100\n", 0o444)
	r.write("proc/driver/nvidia/gpus/0000:03:00.0/information", "GPU UUID: "+gpu1+"\n", 0o444)
	marker := filepath.Join(r.dir, "started")
	report := collectRoot(t, hwclaims.Options{Root: r.dir, NVMLChild: []string{"/usr/bin/touch", marker}})
	if !slices.Equal(report.Claims.GPUUUIDs, []string{gpu1}) {
		t.Errorf("claims %v", report.Claims.GPUUUIDs)
	}
	if _, err := os.Stat(marker); err == nil {
		t.Error("the child was started")
	}
	if !slices.ContainsFunc(report.Notes, func(n string) bool { return strings.Contains(n, "0000:02:00.0") }) {
		t.Errorf("no note of the GPU without a UUID: %q", report.Notes)
	}
}

func TestNVMLThenProc(t *testing.T) {
	r := newRoot(t)
	const procGPU = "GPU-6b200001-0000-4000-8000-000000007731"
	r.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27\n", 0o444)
	r.write("proc/driver/nvidia/gpus/0000:01:00.0/information", "GPU UUID: "+procGPU+"\n", 0o444)

	claims, notes := hwclaims.GPUs(t.Context(), r.dir, hwclaims.Options{NVMLChild: library(t)})
	if want := []string{gpu1, gpu3}; !slices.Equal(claims, want) {
		t.Errorf("NVML: claims %v, want %v (notes %q)", claims, want, notes)
	}
	claims, notes = hwclaims.GPUs(t.Context(), r.dir, hwclaims.Options{NVMLChild: library(t, "-DINIT=18")})
	if !slices.Equal(claims, []string{procGPU}) {
		t.Errorf("mismatch: claims %v", claims)
	}
	if text := strings.Join(notes, "\n"); !strings.Contains(text, "NVML 18") || !strings.Contains(text, "580.65.06") {
		t.Errorf("the notes do not name the failure and the driver's version: %q", notes)
	}
	claims, _ = hwclaims.GPUs(t.Context(), r.dir, hwclaims.Options{})
	if !slices.Equal(claims, []string{procGPU}) {
		t.Errorf("no child: claims %v", claims)
	}
	claims, notes = hwclaims.GPUs(t.Context(), newRoot(t).dir, hwclaims.Options{NVMLChild: []string{"/bin/false"}})
	if len(claims) != 0 || len(notes) != 1 || !strings.Contains(notes[0], "no NVIDIA driver") {
		t.Errorf("no driver: claims %v, notes %q", claims, notes)
	}
}

func TestRunningRoot(t *testing.T) {
	r := newRoot(t)
	r.write("proc/version", "Linux\n", 0o444)
	if hwclaims.Running(r.dir) || hwclaims.SharesNetwork(r.dir) {
		t.Error("a recorded root is this machine")
	}
	if !hwclaims.Running("/") || !hwclaims.SharesNetwork("/") {
		t.Error("/ is not this machine")
	}
	if !hwclaims.Running("/proc/self/root") {
		t.Error("another path to this machine's root is another machine")
	}
}
