//go:build !nonvml && linux && (amd64 || arm64)

package hwclaims

import (
	"errors"
	"fmt"
	"strings"

	"github.com/ebitengine/purego"
)

// haveNVML says that this program can load NVML.
const haveNVML = true

const (
	nvmlLibrary = "libnvidia-ml.so.1" // the driver's; the .so without a number belongs to development packages

	// maxNVMLGPUs bounds the work that a library's nonsense makes. No machine has half as many GPUs.
	maxNVMLGPUs = 256

	nvmlSuccess  = 0
	nvmlVGPU     = 2  // NVML_GPU_VIRTUALIZATION_MODE_VGPU: a guest's instance
	nvmlUUIDSize = 96 // NVML_DEVICE_UUID_V2_BUFFER_SIZE
)

// nvml is the part of the library that is used. Every function but errorString returns an nvmlReturn_t.
type nvml struct {
	init               func() int32
	shutdown           func() int32
	count              func(n *uint32) int32
	handle             func(index uint32, device *uintptr) int32
	uuid               func(device uintptr, buffer *byte, size uint32) int32
	virtualizationMode func(device uintptr, mode *uint32) int32
	errorString        func(code int32) string
}

// queryNVML loads the library, which may hang or crash, and lists the GPUs. MIG instances are not listed: the physical
// GPU stands for them.
func queryNVML() nvmlAnswer {
	lib, err := loadNVML()
	if err != nil {
		return nvmlAnswer{Error: err.Error()}
	}
	if code := lib.init(); code != nvmlSuccess {
		return nvmlAnswer{Error: lib.failure("cannot start NVML", code)}
	}
	defer lib.shutdown()
	var n uint32
	if code := lib.count(&n); code != nvmlSuccess {
		return nvmlAnswer{Error: lib.failure("cannot count GPUs", code)}
	}
	if n > maxNVMLGPUs {
		return nvmlAnswer{Error: fmt.Sprintf("cannot list %d GPUs: at most %d are believed", n, maxNVMLGPUs)}
	}
	var a nvmlAnswer
	for i := range n {
		g, problem := lib.gpu(i)
		if problem != "" { // one lost GPU hides no other
			a.Notes = append(a.Notes, problem)
			continue
		}
		a.GPUs = append(a.GPUs, g)
	}
	return a
}

func (l nvml) gpu(index uint32) (g nvmlGPU, problem string) {
	var device uintptr
	if code := l.handle(index, &device); code != nvmlSuccess {
		return g, l.failure(fmt.Sprintf("cannot open GPU %d", index), code)
	}
	buffer := make([]byte, nvmlUUIDSize)
	if code := l.uuid(device, &buffer[0], nvmlUUIDSize); code != nvmlSuccess {
		return g, l.failure(fmt.Sprintf("cannot read the UUID of GPU %d", index), code)
	}
	text, _, _ := strings.Cut(string(buffer), "\x00")
	var mode uint32
	code := l.virtualizationMode(device, &mode) // an older library or board says that it does not know the question
	return nvmlGPU{UUID: text, VGPU: code == nvmlSuccess && mode == nvmlVGPU}, ""
}

func (l nvml) failure(what string, code int32) string {
	return fmt.Sprintf("%s: %s (NVML %d)", what, l.errorString(code), code)
}

func loadNVML() (nvml, error) {
	lib, err := purego.Dlopen(nvmlLibrary, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nvml{}, fmt.Errorf("cannot load %s: %w", nvmlLibrary, err)
	}
	var l nvml
	var missing []error
	for name, fn := range map[string]any{
		"nvmlInit_v2":                     &l.init,
		"nvmlShutdown":                    &l.shutdown,
		"nvmlDeviceGetCount_v2":           &l.count,
		"nvmlDeviceGetHandleByIndex_v2":   &l.handle,
		"nvmlDeviceGetUUID":               &l.uuid,
		"nvmlDeviceGetVirtualizationMode": &l.virtualizationMode,
		"nvmlErrorString":                 &l.errorString,
	} {
		symbol, err := purego.Dlsym(lib, name)
		if err != nil {
			missing = append(missing, fmt.Errorf("%s has no %s", nvmlLibrary, name))
			continue
		}
		purego.RegisterFunc(fn, symbol)
	}
	return l, errors.Join(missing...)
}
