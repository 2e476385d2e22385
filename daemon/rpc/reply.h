/* reply.h - small helpers of the handlers: looking things up, building lists of replies. */
#ifndef FP8D_DAEMON_RPC_REPLY_H
#define FP8D_DAEMON_RPC_REPLY_H

#include "daemon/engine/model.h"
#include "daemon/engine/upkeep.h"
#include "daemon/rpc/request.h"
#include "kernels/qtensor.h"

/* Cap of what one reply's lists may take while they are built. */
#define REPLY_ARENA_CAP ((size_t)8 << 20)
/* Rows of a list reply in one frame; longer lists come in several frames, flag MORE on all but the
 * last, whose metas joined end to end parse as one message. */
#define REPLY_ROWS 128

/* A name in a request: FP8D_EINVALID_ARGUMENT unless it is one. `field` is for sentences. */
int reply_check_model_name(const char *name, const char *field, struct fault *f);

/* A path that must be there (1 to 4095 bytes) if `wanted`, and must not if not; `field` is the one that
 * says so. */
int reply_check_server_path(const char *path, bool wanted, const char *field, struct fault *f);

/* Base names, one for each descriptor of the frame, at least one. */
int reply_check_names(const struct request *rq, char *const *names, size_t count, struct fault *f);

/* The model and layer a request names, the model stamped into the reply. */
int reply_find_model(struct request *rq, const char *name, struct model **out, struct fault *f);
int reply_find_layer(struct request *rq, const char *model, const char *layer, struct model **m,
                     struct layer **l, struct fault *f);

/* NULL (absent) expects nothing. */
int reply_expect(const Fp8d__V1__Expect *x, const struct model *m, struct fault *f);

/* The wire's recipe as a wish (unset fields keep what there is), with its ranges checked; and a whole
 * recipe on its way out. */
int reply_recipe_in(const Fp8d__V1__Recipe *in, struct recipe_wish *out, struct fault *f);
void reply_recipe_out(const struct recipe *in, Fp8d__V1__Recipe *out);

void reply_cast(const struct cast_report *r, enum dtype fmt, bool uncalibrated,
                Fp8d__V1__CastInfo *out);
void reply_model_info(const struct model *m, Fp8d__V1__ModelInfo *info, Fp8d__V1__Recipe *recipe);

#endif
