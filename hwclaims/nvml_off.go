//go:build nonvml || !linux || !(amd64 || arm64)

package hwclaims

// haveNVML says that this program can load NVML.
const haveNVML = false

func queryNVML() nvmlAnswer {
	return nvmlAnswer{Error: "this program is built without NVML"}
}
