package tpmkey

import "crypto"

// KindOf returns where a key of a [Store] lives; "" for any other key.
func KindOf(key crypto.Signer) Kind {
	switch key.(type) {
	case *tpmKey:
		return KindTPM
	case *fileKey:
		return KindFile
	default:
		return ""
	}
}
