package hwclaims_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/better-compute/bcd/hwclaims"
)

// fillers are texts that stand in no list: what firmware makes of its defaults when it cuts, overwrites, misspells,
// translates or numbers them.
var fillers = map[string][]string{
	"cut or overwritten": {
		"Default str", "efault string", "Defaultstring", "DEFAULT_STRING_1", "OEM Default String", "Default strin", "Defaul",
		"To be filled by O.E", "To Be Filled By", "To be fi", "Filled By O.E.M.", "XYZ123filled by O.E.M.",
		"7XQ4T23be filled by O.E.M.", "ABCDE12lt string", "ystem manufacturer", "stem Serial Number", "SystemSerialNumb",
		"Chassis Manufacture", "Not Applicabl", "hassis Serial Number",
	},
	"misspelt": {
		"D3fault String", "T0 Be Fi11ed By 0.E.M.", "To Be Filed By OEM", "Deafult string", "Dafault string", "default sting",
		"Not Availiable", "unkown", "Uknown", "Not Aplicable", "Serail Number",
	},
	"another name": {
		"To Be Filled By Lenovo", "to_be_filled_by_oem", "Tobefilled", "System S/N", "SysSerialNum", "Serial#", "Board S/N",
		"BaseBoardSerialNumber", "MB Serial Number", "Product Serial No", "Asset Tag", "No Asset Tag", "ChassisSN", "OEM SERIAL",
		"O.E.M. Board", "OEM000", "OEM00001", "SERIAL0001", "SN000000001", "Serial1", "Insert serial here", "see label",
		"Your serial number", "Service Tag", "PCA_number.ACD", "Standard", "Motherboard", "V1.0", "Rev 2",
	},
	"nothing": {
		"N/A", "n.a.", "not avail", "Unavailable", "UNKNOWN_SERIAL", "undefined", "NULL", "(null)", "<null>", "none specified",
		"NoSerial", "NOT INJECT YET", "not programmed", "Not Settable", "to be determined", "TBA", "Tbd By Oem", "todo",
		"CHANGEME", "placeholder", "TestSerial", "TEST123", "dummy serial", "INVALID SERIAL", "[None]", "(blank)", "Reserve",
		"notset", "NONE NONE", "42", "0", "-", "*", "...", "(^_^)", "?", "how does your computer identify itself?",
	},
	"template token": {
		"$(SERIAL)", "${serial}", "{{serial}}", "%s", "<serial>", "[SN]", "@@SN@@", "SmbiosType2_BoardSerialNumber",
		"Type2 - Board Serial Number", "Type1SerialNumber", "DmiSystemSerial", "DMI_SYS_SERIAL", "SMBIOS_SN", "XXXX-XXXX",
		"SN-XXXXXXXX", "SNXXXXXXX", "xxx7xQ", "YYYYMMDDXXXX", "S/N: XXXX", "SN########", "SN-????-01", "S26361-Kxxx-Vzzz",
	},
	"counting": {
		"123456", "0123456789", "1234567890", "01234567890123456789AB", "012345678912345678912345678", "#A123456789",
		"NB-1234567890", "SN-0123456789", "000000000000000001234567890", "1122334455", "98765432", "9876543210", "0987654321",
		"ABCDEFGHIJ", "abcdefgh", "ABC123", "a1234567890", "123456789ABCDEF", "0123456789ABCDEF", "FEDCBA9876543210", "12341234",
		"1234512345", "123.456.789", "1-2-3-4-5-6", "SAMSUNG_XY1234567890", "1234567#ABC",
	},
	"repeated": {
		"XXXXXXXXXX", "0000000000", "00-00-00", "aaaaaaaa", "0xFFFFFFFF", "----------", "0x00000000", "ABABABAB", "1212121212",
		"123123123", "DEADBEEFDEADBEEF", "10000000", "A0000000000", "00:00:00:00:00:00", "FF:FF:FF:FF:FF:FF",
	},
	"a UUID's filler": {
		"00000000-0000-0000-0000-000000000000", "03000200-0400-0500-0006-000700080009",
		"VMware-00 00 00 00 00 00 00 00-00 00 00 00 00 00 00 00",
	},
	"translated": {
		"String padrão", "Cadeia de caracteres padrão", "A ser preenchido pelo O.E.M.", "Número de série", "Desconhecido",
		"Não especificado", "Nenhum", "Cadena predeterminada", "A rellenar por O.E.M.", "Sin especificar", "Ninguno",
		"Chaîne par défaut", "À remplir par l'O.E.M.", "Inconnu", "Non spécifié", "Aucun", "Standardzeichenfolge",
		"Vom OEM auszufüllen", "Seriennummer", "Unbekannt", "Nicht verfügbar", "Keine", "Stringa predefinita", "Sconosciuto",
		"Standaardtekenreeks", "Onbekend", "Okänd", "Строка по умолчанию", "Неизвестно", "默认字符串", "未知", "由O.E.M.填写",
		"既定の文字列", "不明", "기본 문자열", "알 수 없음", "Nieznany", "Varsayılan dize", "Bilinmiyor", "Neznámé", "Μη καθορισμένο",
	},
}

// realTexts come close to filler and are serials: short ones, zeros and masks inside, hypervisors', words of a site.
var realTexts = []string{
	"7XQ4T23", "3QHW8Z1", "DB3KZZ1", ".7XQ4T23.CNIVC0001Q0042.", "..CN7475144H0031.", "CZJ1280AAA", "J300AAAA", "IG4N0400000",
	"203085870000001", "A000000X0000000", "OM200S000000", "C119CALXXXX0001", "QTFCQ57140000", "1312824320001", "MT2331XZ0000",
	"10000000abcd0001", "00000000316e5228", "3135-4298-3414-7021-8716-7514-00", "i-0abc000000000000a", "GoogleCloud-9F3A1C77",
	"VMware-42 1b ba bd 5f 4e 4f 7e-8a 56 b5 af 1c e1 a0 00", "ec23aef5-54be-4843-8d24-8c819f000000",
	"Parallels-12 34 AB CD 56 78 90 12 34 56 78 90 AB CD EF 12", "A1B", "B2X", "1A2", "F3K9", "ABC", "BBKDJZX", "PWWFB", "4711",
	"1024", "7777X", "0042A", "100001", "SN-7701", "sn-7701", "SGH123X456", "2M20120012", "06DY1PN", "1S7X02CTO1WWJ100",
	"TESTLAB-0042", "SERVER-0417", "RACK12-U07-4711", "CHASSIS-7731", "SYS7731", "UNIT48213", "XXC11", "NNQ2", "20231127",
	"S26361K1234V567", "OEMA7731", "STR1NG9", "GH-2213-Ñ", "SERİAL7731", "AB123", "31415926", "100200300", "LTD4", "MB0SN",
}

// Req: HC-014
func TestFillerTextIsCaughtByRule(t *testing.T) {
	for kind, values := range fillers {
		for _, v := range values {
			if hwclaims.FillerText(v) == "" {
				t.Errorf("%s: %q survives", kind, v)
			}
			claims := hwclaims.Claims{ProductSerial: " \t" + v + " \n"}
			if a := hwclaims.Assess(claims); len(a.Classes) > 0 {
				t.Errorf("%s: %q survives with space around it", kind, v)
			}
		}
	}
}

func TestRealTextSurvives(t *testing.T) {
	for _, v := range realTexts {
		if why := hwclaims.FillerText(v); why != "" {
			t.Errorf("%q is dropped: %s", v, why)
		}
	}
}

// Serial numbers that are drawn at random do not look like filler. The few that do are short or count by chance.
func TestRandomSerialsSurvive(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same serials at each run
	const n = 3000
	for _, alphabet := range []string{"0123456789", "0123456789BCDFGHJKLMNPQRSTVWXYZ", "0123456789abcdef"} {
		for _, length := range []int{7, 10, 15} {
			dropped := 0
			for range n {
				b := make([]byte, length)
				for i := range b {
					b[i] = alphabet[random.IntN(len(alphabet))]
				}
				if why := hwclaims.FillerText(string(b)); why != "" {
					t.Logf("%s: %s", b, why)
					dropped++
				}
			}
			if dropped > 1 {
				t.Errorf("%d of %d serials of %d characters out of %q are dropped", dropped, n, length, alphabet)
			}
		}
	}
}

func TestEchoOfTheNames(t *testing.T) {
	const vendor, product = "Dell Inc.", "PowerEdge R750"
	for _, v := range []string{
		"Dell Inc.", "DELL", "PowerEdge R750", "PowerEdgeR750", "poweredge_r750", "R750", "Dell PowerEdge R750", "PowerEdge R75",
		"R750 Serial", "Dell R750",
	} {
		if hwclaims.FillerText(v, vendor, product) == "" {
			t.Errorf("%q survives on a %s %s", v, vendor, product)
		}
	}
	for _, v := range []string{"7XQ4T23", "R750-7XQ4T23", "DELL7731"} {
		if why := hwclaims.FillerText(v, vendor, product); why != "" {
			t.Errorf("%q is dropped on a %s %s: %s", v, vendor, product, why)
		}
	}
	if hwclaims.FillerText("Amazon EC2", "Amazon EC2", "g5.xlarge") == "" {
		t.Error("the vendor's name survives as a serial")
	}
}

var fillerUUIDs = []string{
	"00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff", "00000000-0000-0000-0000-000000000001",
	"fffffffe-ffff-ffff-ffff-ffffffffffff", "00000000-0000-0000-0000-ffffffffffff", "80000000-0000-0000-0000-000000000000",
	"12345678-90ab-cdef-1234-567890abcdef", "78563412-ab90-efcd-1234-567890abcdef", "12345678-1234-1234-1234-123456789abc",
	"00112233-4455-6677-8899-aabbccddeeff", "33221100-5544-7766-8899-aabbccddeeff", "0f0e0d0c-0b0a-0908-0706-050403020100",
	"03020100-0504-0706-0809-0a0b0c0d0e0f", "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee", "a5a5a5a5-5a5a-a5a5-5a5a-a5a5a5a55a5a",
	"cafebabe-cafe-babe-cafe-babecafebabe", "deadbeef-0000-0000-0000-000000000000", "fefefefe-fefe-fefe-fefe-fefefefefefe",
	// Dell without a tag: zeros, blanks, X, both byte orders
	"4c4c4544-0000-0010-8000-80c04f000000", "4c4c4544-0020-2010-8020-a0c04f202020", "4c4c4544-0058-5810-8058-d8c04f585858",
	"44454c4c-2000-1020-8020-a0c04f202020", "4c4c4544-0030-3010-8030-b0c04f303030",
	// AMI's template with a MAC of zeros, ones, or a shared one; the other byte order
	"03000200-0400-0500-0006-000700080009", "03ff02ff-04ff-05ff-ff06-ff0700080009", "03e00200-044c-0568-0006-010700080009",
	"00020003-0004-0005-0006-000700080009",
	// HP with a SKU and no serial; text of a default
	"35373932-3733-2020-2020-202020202020", "32393735-3733-0000-0000-000000000000", "32393735-3733-3030-3030-303030303030",
	"30313233-3435-3637-3839-414243444546", "44656661-756c-7420-7374-72696e672020", "546f2042-6520-4669-6c6c-656420427920",
	// a MAC alone, and not one of a NIC
	"00000000-0000-0000-0000-02fc00000001", "00000000-0000-0000-0000-be3af2b6059f", "00000000-0000-0000-0000-001122334455",
	// not UUIDs
	"00000000-2093bfe3-e53b-4fc3-9cb1-9217ea6228c7", "3445DEE7-45D0-1244-95DD-34FAA067C1BE33E", "Not Present", "Not Settable",
	"{890e2d15-cacd-45d1-ae66-bc80e8bfeb0f}", "urn:uuid:890e2d15-cacd-45d1-ae66-bc80e8bfeb0f",
}

var realUUIDs = []string{
	"00000000-0000-0000-0000-ac1f6b00e596", "00000000-0000-0000-0000-002590000001", "00000000-0000-0000-0000-0cc47a004338",
	"0002869a-8efe-d511-868c-002618000fd4", "e2699c60-cd79-0010-9a2e-001b24000000", "1e00e6e0-008c-4400-9aad-f46d04000d3e",
	"49434D53-0200-9000-2500-00902500E439", "a0b1c2d3-0100-4e5f-8a9b-000000000001", "4c4c4544-0058-5110-8034-b7c04f543233",
	"44454c4c-3800-1058-8044-c4c04f30304a", "4c4c4544-0058-4310-8051-b7c04f452020", "32393735-3733-5a43-4a31-323830414141",
	"34333638-3234-5a43-3239-30303030304b", "03d40274-0435-0500-d906-d20700080009", "032e02b4-0499-0500-0806-3c0700080009",
	"564d0000-0000-0000-0000-0000000a7731", "890e2d15cacd45d1ae66bc80e8bfeb0f",
}

// Req: HC-014
func TestFillerUUIDs(t *testing.T) {
	for _, v := range fillerUUIDs {
		if hwclaims.FillerUUID(v) == "" || hwclaims.FillerUUID(strings.ToUpper(v)) == "" {
			t.Errorf("%q survives", v)
		}
	}
	for _, v := range realUUIDs {
		if why := hwclaims.FillerUUID(v); why != "" {
			t.Errorf("%q is dropped: %s", v, why)
		}
	}
}

func TestRandomUUIDsSurvive(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4)) //nolint:gosec // the same UUIDs at each run
	for range 50_000 {
		v := fmt.Sprintf("%016x%016x", random.Uint64(), random.Uint64())
		if why := hwclaims.FillerUUID(v); why != "" {
			t.Errorf("%q is dropped: %s", v, why)
		}
	}
}

func TestFillerMACs(t *testing.T) {
	for _, v := range []string{
		"00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff", "be:3a:f2:b6:05:9f", "b0:3a:f2:b6:05:9f", "00:1a:ca:ff:ff:01", "00:1a:ca:ff:ff:02",
		"00:e0:4c:68:00:01", "00:e0:4c:68:00:fe", "ee:ee:ee:ee:ee:ee", "02:42:ac:11:00:02", "02:fc:00:00:00:01",
		"52:54:00:12:34:56", "fe:ff:ff:ff:ff:ff", "01:00:5e:00:00:01", "44:44:44:44:44:44", "00:11:22:33:44:55",
		"00:01:02:03:04:05", "00:02:03:04:05:06", "00:12:34:56:78:9a", "00:00:00:00:00:01", "88:88:88:88:87:88", "00:1a:7d:da:71:0a",
		"ch:64", "80:00:02:08:fe:80:00:00:00:00:00:00:b8:59:9f:03:00:00:00:0a", "b8:ce:f6:03:00:00:33:3e", "",
	} {
		if hwclaims.FillerMAC(v) == "" {
			t.Errorf("%q survives", v)
		}
	}
	for _, v := range []string{
		"70:b5:e8:00:50:28", "00:25:90:00:e4:39", "00:15:5d:00:00:01", "08:00:27:00:00:01", "00:e0:4c:69:00:01", "00:1a:ca:ff:fe:01",
		"ac:1f:6b:00:00:01", "00:50:56:00:00:01", "70-B5-E8-00-50-28", "70b5.e800.5028", "70B5E8005028",
	} {
		if why := hwclaims.FillerMAC(v); why != "" {
			t.Errorf("%q is dropped: %s", v, why)
		}
	}
}

func TestMalformedPlaceholderListIsRefused(t *testing.T) {
	for name, list := range map[string]string{
		"no source": "text\tx\t", "two columns": "text\tx", "kind": "words\tx\ty", "uuid": "uuid\t1234\ty", "mac": "mac\tch:64\ty",
		"prefix":       "mac-prefix\tzz:zz:zz\ty",
		"short prefix": "mac-prefix\t00:11:2\ty", "whole prefix": "mac-prefix\t00:11:22:33:44:55\ty", "blank": "text\t...\ty",
	} {
		if hwclaims.ParsePlaceholders(list) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if err := hwclaims.ParsePlaceholders("# comment\n\ntext\tx\tsource\nmac-prefix\t00:11:22\ty\nmac-prefix\t00:11:22:33:44:5\ty\n"); err != nil {
		t.Error(err)
	}
}
