;; The arithmetic of engine.js, four numbers at a time. Addresses are bytes; counts of numbers are multiples of 16 (a row of w)
;; and of 4 (a head). website/wat.py assembles this file.
(module
  (import "env" "memory" (memory 1))

  ;; y[r] = s[r] * sum over c of w[r, c] * x[c]: w in int8, all else in float32
  (func (export "multiply") (param $w i32) (param $s i32) (param $x i32) (param $y i32) (param $rows i32) (param $columns i32)
    (local $last i32) (local $end i32) (local $p i32) (local $bytes v128) (local $half v128)
    (local $a v128) (local $b v128) (local $c v128) (local $d v128)
    local.get $y  local.get $rows  i32.const 4  i32.mul  i32.add  local.set $last
    loop $row
      v128.const 0  local.tee $a  local.tee $b  local.tee $c  local.set $d
      local.get $x  local.set $p
      local.get $w  local.get $columns  i32.add  local.set $end
      loop $column
        local.get $w  v128.load  local.tee $bytes
        i16x8.extend_low_i8x16_s  local.tee $half
        i32x4.extend_low_i16x8_s  f32x4.convert_i32x4_s  local.get $p  v128.load  f32x4.mul  local.get $a  f32x4.add  local.set $a
        local.get $half
        i32x4.extend_high_i16x8_s  f32x4.convert_i32x4_s  local.get $p  v128.load offset=16  f32x4.mul  local.get $b  f32x4.add  local.set $b
        local.get $bytes  i16x8.extend_high_i8x16_s  local.tee $half
        i32x4.extend_low_i16x8_s  f32x4.convert_i32x4_s  local.get $p  v128.load offset=32  f32x4.mul  local.get $c  f32x4.add  local.set $c
        local.get $half
        i32x4.extend_high_i16x8_s  f32x4.convert_i32x4_s  local.get $p  v128.load offset=48  f32x4.mul  local.get $d  f32x4.add  local.set $d
        local.get $p  i32.const 64  i32.add  local.set $p
        local.get $w  i32.const 16  i32.add  local.tee $w  local.get $end  i32.ne  br_if $column
      end
      local.get $a  local.get $b  f32x4.add  local.get $c  f32x4.add  local.get $d  f32x4.add  local.set $a
      local.get $y
      local.get $a  f32x4.extract_lane 0  local.get $a  f32x4.extract_lane 1  f32.add
      local.get $a  f32x4.extract_lane 2  f32.add  local.get $a  f32x4.extract_lane 3  f32.add
      local.get $s  f32.load  f32.mul  f32.store
      local.get $s  i32.const 4  i32.add  local.set $s
      local.get $y  i32.const 4  i32.add  local.tee $y  local.get $last  i32.ne  br_if $row
    end)

  ;; y[j] = q . k[j], for n keys of `width` numbers that are `stride` bytes apart
  (func (export "dots") (param $q i32) (param $k i32) (param $y i32) (param $n i32) (param $width i32) (param $stride i32)
    (local $last i32) (local $end i32) (local $p i32) (local $at i32) (local $a v128)
    local.get $y  local.get $n  i32.const 4  i32.mul  i32.add  local.set $last
    local.get $q  local.get $width  i32.const 4  i32.mul  i32.add  local.set $end
    loop $key
      v128.const 0  local.set $a
      local.get $q  local.set $p
      local.get $k  local.set $at
      loop $channel
        local.get $p  v128.load  local.get $at  v128.load  f32x4.mul  local.get $a  f32x4.add  local.set $a
        local.get $at  i32.const 16  i32.add  local.set $at
        local.get $p  i32.const 16  i32.add  local.tee $p  local.get $end  i32.ne  br_if $channel
      end
      local.get $y
      local.get $a  f32x4.extract_lane 0  local.get $a  f32x4.extract_lane 1  f32.add
      local.get $a  f32x4.extract_lane 2  f32.add  local.get $a  f32x4.extract_lane 3  f32.add
      f32.store
      local.get $k  local.get $stride  i32.add  local.set $k
      local.get $y  i32.const 4  i32.add  local.tee $y  local.get $last  i32.ne  br_if $key
    end)

  ;; y = sum over j of weight[j] v[j], for n values of `width` numbers that are `stride` bytes apart
  (func (export "mix") (param $weight i32) (param $v i32) (param $y i32) (param $n i32) (param $width i32) (param $stride i32)
    (local $last i32) (local $end i32) (local $p i32) (local $at i32) (local $a v128)
    local.get $weight  local.get $n  i32.const 4  i32.mul  i32.add  local.set $last
    local.get $y  local.get $width  i32.const 4  i32.mul  i32.add  local.set $end
    loop $channel
      v128.const 0  local.set $a
      local.get $weight  local.set $p
      local.get $v  local.set $at
      loop $key
        local.get $p  f32.load  f32x4.splat  local.get $at  v128.load  f32x4.mul  local.get $a  f32x4.add  local.set $a
        local.get $at  local.get $stride  i32.add  local.set $at
        local.get $p  i32.const 4  i32.add  local.tee $p  local.get $last  i32.ne  br_if $key
      end
      local.get $y  local.get $a  v128.store
      local.get $v  i32.const 16  i32.add  local.set $v
      local.get $y  i32.const 16  i32.add  local.tee $y  local.get $end  i32.ne  br_if $channel
    end)
)
